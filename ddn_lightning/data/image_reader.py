"""A cache of decoded images that proves its contents."""

import hashlib
import os
import re
import uuid
import zlib
from collections.abc import Sequence
from contextlib import suppress

import numpy
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from ddn_lightning.data.decoding import decode_images
from ddn_lightning.data.image_tree import ImageFile, full_path
from ddn_lightning.notes import note_once

CACHE_FORMAT = 2  # part of the cache's key: to be raised when images are decoded in another way
CHECKSUM_BYTES = 4  # at the end of a cache file, after what NumPy reads


class ImageReader:
    """Reads the images of a split: from the files the first time, from one cache file per split and size after that.

    The key in the cache file's name is a hash over the relative paths, sizes and times of change of all images, so a
    changed, added or removed image makes a new one. A checksum over the file proves that it is what was written under
    this name; else its images are decoded anew. Where no cache can be written, they are at every start.

    Args:
        root: Folder that holds the images.
        image_size: Height and width to resize to; ``None`` if all images have one size already.
        cache_dir: Folder for the cache; ``None`` for ``.ddn_cache`` in ``root``.
    """

    def __init__(self, root: str, image_size: int | None = None, cache_dir: str | None = None) -> None:
        self.root = full_path(root)
        self.image_size = image_size
        self.folder = os.path.join(self.root, ".ddn_cache")
        if cache_dir is not None:  # may serve several datasets, which must not throw out each other's files
            key = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]
            self.folder = os.path.join(full_path(cache_dir), f"{os.path.basename(self.root)}-{key}")
        self._kept: dict[str, Tensor] = {}  # what could not be cached

    def prepare(self, split: str, files: Sequence[ImageFile]) -> None:
        """Decode a split unless that is done already: for one rank, before all :meth:`read`."""
        path = self._cache_file(split, files)
        if path not in self._kept and self._cached(path, len(files)) is None:
            self._decode(split, path, files)

    def read(self, split: str, files: Sequence[ImageFile]) -> tuple[Tensor, Tensor]:
        """Images (number, 3, height, width) as ``uint8`` and labels, in the order of the files."""
        path = self._cache_file(split, files)
        labels = torch.tensor([file.label for file in files])
        if path in self._kept:
            return self._kept[path], labels
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
        """What is in a cache file, or ``None`` if that is not what was written under this name."""
        if not os.path.isfile(path):
            return None
        try:
            images = _read_cache(path)
            expected = (number, 3, *(images.shape[2:] if self.image_size is None else (self.image_size,) * 2))
            if images.shape != expected:
                raise ValueError(f"its shape is {images.shape} instead of {expected}")
        except Exception as error:  # damage shows in many ways, and each means the same: decode again
            note_once(f"the cache {path} is damaged, so its images are decoded anew ({error})")
            return None
        return images

    def _decode(self, split: str, path: str, files: Sequence[ImageFile]) -> Tensor:
        images = decode_images(files, self.image_size, f"Decoding {len(files)} {split} images")
        try:
            os.makedirs(self.folder, exist_ok=True)
            _write_cache(path, images)
            _remove_outdated(path)
        except OSError as error:
            if self._cached(path, len(files)) is None:  # it is there if another rank was faster and tidied up
                rank_zero_warn(f"cannot write a cache in {self.folder}, so the next start decodes again: {error}")
                self._kept[path] = images
        return images


def _read_cache(path: str) -> NDArray[numpy.uint8]:
    """The images in a cache file: copied, as a run of days must not depend on a file that another may replace."""
    with open(path, "rb") as file:
        if numpy.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is no NumPy file of version 1.0")
        shape, is_fortran, dtype = numpy.lib.format.read_array_header_1_0(file)
        length = os.fstat(file.fileno()).st_size - file.tell() - CHECKSUM_BYTES
        if dtype != numpy.uint8 or is_fortran or len(shape) != 4 or numpy.prod(shape, dtype=object) != length:
            raise ValueError(f"{length} bytes for {shape} of {dtype}")  # before anything so large is allocated
        images = numpy.empty(shape, dtype=numpy.uint8)
        file.readinto(images.data)
        found = file.read()
    if found != _checksum(path, images):
        raise ValueError("its checksum does not match")
    return images


def _write_cache(path: str, images: Tensor) -> None:
    temporary = f"{path}.{uuid.uuid4().hex}"  # a name of its own: several ranks may write at once
    try:
        with open(temporary, "xb") as file:
            numpy.save(file, images.numpy(), allow_pickle=False)
            file.write(_checksum(path, images.numpy()))
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave a whole file of zeros under the final name
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            os.remove(temporary)


def _checksum(path: str, images: NDArray[numpy.uint8]) -> bytes:
    """Over name, shape and pixels: a file under another's name has the wrong one."""
    known = zlib.crc32(f"{os.path.basename(path)} {images.shape}".encode())
    return zlib.crc32(images.data, known).to_bytes(CHECKSUM_BYTES, "little")


def _remove_outdated(path: str) -> None:
    """Remove what this file replaces, but leave the images of other sizes."""
    split, size, _ = os.path.basename(path).split("-")
    of_any_size = re.compile(rf"{split}-(\d+|original)-")
    with os.scandir(os.path.dirname(path)) as entries:
        for entry in entries:
            found = of_any_size.match(entry.name)
            is_of_other_size = found is not None and found[1] != size
            if entry.name.startswith(f"{split}-") and entry.path != path and not is_of_other_size:
                with suppress(FileNotFoundError):
                    os.remove(entry.path)
