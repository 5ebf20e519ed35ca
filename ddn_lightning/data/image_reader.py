"""Decoded images, cached in one checksummed file per split."""

import hashlib
import math
import os
import re
import uuid
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from ddn_lightning.data.decoding import decode_chunks, decode_images, decoded_shape
from ddn_lightning.data.image_tree import ImageFile, full_path
from ddn_lightning.errors import ConfigurationError, note_once
from ddn_lightning.runs.files import atomic_write

CACHE_FORMAT = 3  # part of the cache's key: raise it when decoding changes
CHECKSUM_BYTES = 4  # at the end of a cache file, after the NumPy array
MOST_HELD = 2 * 2**30  # bytes of a split that "auto" holds in memory: several ranks may share a small container

InMemory = bool | Literal["auto"]


class ImageReader:
    """Reads the images of a split: decodes the files once, then reads one cache file per split and size.

    The name of a cache file contains a hash of the relative paths, sizes and change times of all images, so any
    changed, added or removed image invalidates it. A cache file with a wrong checksum is decoded again. If the cache
    cannot be written, every start decodes.

    A split that is not held in memory is decoded straight into its cache file, which is then mapped: the system reads
    the images of a batch when it is gathered. All ranks of a machine share the pages. Such images cannot be written to.

    Args:
        root: Folder that holds the images.
        image_size: Height and width to resize to; ``None`` if all images have one size already.
        cache_dir: Folder for the cache; ``None`` for ``.ddn_cache`` in ``root``.
        in_memory: Whether to hold the images in memory; ``"auto"`` does if a split takes at most 2 GiB.
    """

    def __init__(
        self, root: str, image_size: int | None = None, cache_dir: str | None = None, in_memory: InMemory = True
    ) -> None:
        if in_memory not in (True, False, "auto"):
            raise ConfigurationError(f"in_memory must be true, false or auto, got {in_memory!r}")
        self.root = full_path(root)
        self.image_size = image_size
        self.in_memory = in_memory
        self.folder = os.path.join(self.root, ".ddn_cache")
        if cache_dir is not None:  # several datasets may share it and must not remove each other's files
            key = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]
            self.folder = os.path.join(full_path(cache_dir), f"{os.path.basename(self.root)}-{key}")
        self._held: dict[str, Tensor] = {}  # by cache file: mapped and checked, or decoded and not to be written

    def prepare(self, split: str, files: Sequence[ImageFile]) -> None:
        """Decode a split unless it is cached: on one rank, before all ranks :meth:`read`."""
        path = self._cache_file(split, files)
        if path not in self._held and self._cached(path, len(files)) is None:
            self._decode(split, path, files)

    def read(self, split: str, files: Sequence[ImageFile]) -> tuple[Tensor, Tensor]:
        """Images (number, 3, height, width) as ``uint8`` and labels, in the order of the files."""
        path = self._cache_file(split, files)
        labels = torch.tensor([file.label for file in files])
        if path in self._held:
            return self._held[path], labels
        cached = self._cached(path, len(files))
        return self._decode(split, path, files) if cached is None else cached, labels

    def _cache_file(self, split: str, files: Sequence[ImageFile]) -> str:
        lines = [f"{CACHE_FORMAT} {self.image_size}"]
        lines += [
            f"{file.path.removeprefix(self.root)}\0{file.size}\0{file.modified}\0{file.changed}" for file in files
        ]
        key = hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()
        return os.path.join(self.folder, f"{split}-{self.image_size or 'original'}-{key}.npy")

    def _cached(self, path: str, number: int) -> Tensor | None:
        """The images in a cache file, or ``None`` if it is missing or damaged."""
        if not os.path.isfile(path):
            return None
        fits = self._fits(os.path.getsize(path))
        try:
            images = _read_cache(path, fits)
            expected = (number, 3, *(images.shape[2:] if self.image_size is None else (self.image_size,) * 2))
            if images.shape != expected:
                raise ValueError(f"its shape is {images.shape} instead of {expected}")
        except Exception as error:  # damage raises many types of error
            note_once(f"the cache {path} is damaged, so its images are decoded again ({error})")
            return None
        if fits:
            return torch.from_numpy(images)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it cannot be written to
            self._held[path] = torch.from_numpy(images)
        return self._held[path]

    def _fits(self, size: int) -> bool:
        """Whether to hold images of ``size`` bytes in memory."""
        return size <= MOST_HELD if self.in_memory == "auto" else self.in_memory

    def _decode(self, split: str, path: str, files: Sequence[ImageFile]) -> Tensor:
        shape = decoded_shape(files, self.image_size)
        description = f"Decoding {len(files)} {split} images"
        if not self._fits(math.prod(shape)):
            return self._decode_to_file(path, files, shape, description)
        images = decode_images(files, self.image_size, description)
        try:
            _write_cache(path, shape, [images.numpy()])
        except OSError as error:
            if self._cached(path, len(files)) is None:  # else another rank has written it and removed our partial file
                rank_zero_warn(f"cannot write a cache in {self.folder}, so the next start decodes again: {error}")
                self._held[path] = images
        return images

    def _decode_to_file(
        self, path: str, files: Sequence[ImageFile], shape: tuple[int, ...], description: str
    ) -> Tensor:
        """The images, mapped from their new cache file."""
        failure: OSError | None = None
        try:
            _write_cache(path, shape, decode_chunks(files, self.image_size, description))
        except OSError as error:
            failure = error
        mapped = self._cached(path, len(files))  # another rank may have written it
        if mapped is None:
            raise ConfigurationError(
                f"images that are not held in memory need a cache of {math.prod(shape) / 2**30:,.1f} GiB, which cannot "
                f"be written in {self.folder} ({failure}): set cache_dir to another folder, or in_memory to true"
            ) from failure
        return mapped


def _read_cache(path: str, in_memory: bool) -> NDArray[numpy.uint8]:
    """The images in a cache file, in memory or mapped: if another run replaces the file, the mapped one lives on."""
    with open(path, "rb") as file:
        if numpy.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is no NumPy file of version 1.0")
        shape, is_fortran, dtype = numpy.lib.format.read_array_header_1_0(file)
        start = file.tell()
        length = os.fstat(file.fileno()).st_size - start - CHECKSUM_BYTES
        if dtype != numpy.uint8 or is_fortran or len(shape) != 4 or numpy.prod(shape, dtype=object) != length:
            raise ValueError(f"{length} bytes for {shape} of {dtype}")  # before the array is allocated
        images: NDArray[numpy.uint8]
        if in_memory:
            images = numpy.empty(shape, dtype=numpy.uint8)
            file.readinto(images.data)
        else:  # read-only: Linux refuses to map more than its memory for writing
            images = numpy.memmap(file, dtype=numpy.uint8, mode="r", offset=start, shape=shape)
        file.seek(start + length)
        found = file.read()
    if found != zlib.crc32(images.data, _checksum_of_name(path, shape)).to_bytes(CHECKSUM_BYTES, "little"):
        raise ValueError("its checksum does not match")
    return images


def _write_cache(path: str, shape: tuple[int, ...], chunks: Iterable[NDArray[numpy.uint8]]) -> None:
    """Write chunks of images to a cache file, and remove the files that it replaces."""
    unique = Path(f"{path}.{uuid.uuid4().hex}")  # several ranks may write at once
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with atomic_write(Path(path), partial=unique), unique.open("xb") as file:
        numpy.lib.format.write_array_header_1_0(file, header)
        checksum = _checksum_of_name(path, shape)
        for chunk in chunks:
            file.write(chunk.data)
            checksum = zlib.crc32(chunk.data, checksum)
        file.write(checksum.to_bytes(CHECKSUM_BYTES, "little"))
    _remove_outdated(path)


def _checksum_of_name(path: str, shape: tuple[int, ...]) -> int:
    """Start of a cache file's checksum, so that a renamed one does not match."""
    return zlib.crc32(f"{os.path.basename(path)} {shape}".encode())


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
