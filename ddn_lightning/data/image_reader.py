"""Decoded images, cached in one checksummed file per split."""

import hashlib
import os
import re
import uuid
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from ddn_lightning.data.decoding import decode_images
from ddn_lightning.data.image_tree import ImageFile, full_path
from ddn_lightning.notes import note_once
from ddn_lightning.runs.files import atomic_write

CACHE_FORMAT = 2  # part of the cache's key: raise it when decoding changes
CHECKSUM_BYTES = 4  # at the end of a cache file, after the NumPy array


class ImageReader:
    """Reads the images of a split: decodes the files once, then reads one cache file per split and size.

    The name of a cache file contains a hash of the relative paths, sizes and change times of all images, so any
    changed, added or removed image invalidates it. A cache file with a wrong checksum is decoded again. If the cache
    cannot be written, every start decodes.

    Args:
        root: Folder that holds the images.
        image_size: Height and width to resize to; ``None`` if all images have one size already.
        cache_dir: Folder for the cache; ``None`` for ``.ddn_cache`` in ``root``.
    """

    def __init__(self, root: str, image_size: int | None = None, cache_dir: str | None = None) -> None:
        self.root = full_path(root)
        self.image_size = image_size
        self.folder = os.path.join(self.root, ".ddn_cache")
        if cache_dir is not None:  # several datasets may share it and must not remove each other's files
            key = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]
            self.folder = os.path.join(full_path(cache_dir), f"{os.path.basename(self.root)}-{key}")
        self._uncached: dict[str, Tensor] = {}  # decoded images whose cache file could not be written

    def prepare(self, split: str, files: Sequence[ImageFile]) -> None:
        """Decode a split unless it is cached: on one rank, before all ranks :meth:`read`."""
        path = self._cache_file(split, files)
        if path not in self._uncached and self._cached(path, len(files)) is None:
            self._decode(split, path, files)

    def read(self, split: str, files: Sequence[ImageFile]) -> tuple[Tensor, Tensor]:
        """Images (number, 3, height, width) as ``uint8`` and labels, in the order of the files."""
        path = self._cache_file(split, files)
        labels = torch.tensor([file.label for file in files])
        if path in self._uncached:
            return self._uncached[path], labels
        cached = self._cached(path, len(files))
        return self._decode(split, path, files) if cached is None else torch.from_numpy(cached), labels

    def _cache_file(self, split: str, files: Sequence[ImageFile]) -> str:
        lines = [f"{CACHE_FORMAT} {self.image_size}"]
        lines += [
            f"{file.path.removeprefix(self.root)}\0{file.size}\0{file.modified}\0{file.changed}" for file in files
        ]
        key = hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()
        return os.path.join(self.folder, f"{split}-{self.image_size or 'original'}-{key}.npy")

    def _cached(self, path: str, number: int) -> NDArray[numpy.uint8] | None:
        """The images in a cache file, or ``None`` if it is missing or damaged."""
        if not os.path.isfile(path):
            return None
        try:
            images = _read_cache(path)
            expected = (number, 3, *(images.shape[2:] if self.image_size is None else (self.image_size,) * 2))
            if images.shape != expected:
                raise ValueError(f"its shape is {images.shape} instead of {expected}")
        except Exception as error:  # damage raises many types of error
            note_once(f"the cache {path} is damaged, so its images are decoded again ({error})")
            return None
        return images

    def _decode(self, split: str, path: str, files: Sequence[ImageFile]) -> Tensor:
        images = decode_images(files, self.image_size, f"Decoding {len(files)} {split} images")
        try:
            _write_cache(path, images)
            _remove_outdated(path)
        except OSError as error:
            if self._cached(path, len(files)) is None:  # else another rank has written it and removed our partial file
                rank_zero_warn(f"cannot write a cache in {self.folder}, so the next start decodes again: {error}")
                self._uncached[path] = images
        return images


def _read_cache(path: str) -> NDArray[numpy.uint8]:
    """The images in a cache file, read into memory: another run may replace the file."""
    with open(path, "rb") as file:
        if numpy.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is no NumPy file of version 1.0")
        shape, is_fortran, dtype = numpy.lib.format.read_array_header_1_0(file)
        length = os.fstat(file.fileno()).st_size - file.tell() - CHECKSUM_BYTES
        if dtype != numpy.uint8 or is_fortran or len(shape) != 4 or numpy.prod(shape, dtype=object) != length:
            raise ValueError(f"{length} bytes for {shape} of {dtype}")  # before the array is allocated
        images = numpy.empty(shape, dtype=numpy.uint8)
        file.readinto(images.data)
        found = file.read()
    if found != _checksum(path, images):
        raise ValueError("its checksum does not match")
    return images


def _write_cache(path: str, images: Tensor) -> None:
    unique = Path(f"{path}.{uuid.uuid4().hex}")  # several ranks may write at once
    with atomic_write(Path(path), partial=unique), unique.open("xb") as file:
        numpy.save(file, images.numpy(), allow_pickle=False)
        file.write(_checksum(path, images.numpy()))


def _checksum(path: str, images: NDArray[numpy.uint8]) -> bytes:
    """Checksum of name, shape and pixels, so that a renamed cache file does not match."""
    known = zlib.crc32(f"{os.path.basename(path)} {images.shape}".encode())
    return zlib.crc32(images.data, known).to_bytes(CHECKSUM_BYTES, "little")


def _remove_outdated(path: str) -> None:
    """Remove the files that this cache file replaces; keep those of other image sizes."""
    split, size, _ = os.path.basename(path).split("-")
    of_any_size = re.compile(rf"{split}-(\d+|original)-")
    with os.scandir(os.path.dirname(path)) as entries:
        for entry in entries:
            found = of_any_size.match(entry.name)
            is_of_other_size = found is not None and found[1] != size
            if entry.name.startswith(f"{split}-") and entry.path != path and not is_of_other_size:
                with suppress(FileNotFoundError):
                    os.remove(entry.path)
