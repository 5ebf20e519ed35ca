"""Images in folders: finding them, decoding each once and in parallel, and a cache that later starts read instead."""

import hashlib
import os
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy
import torch
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ddn_lightning.errors import ConfigurationError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")
CACHE_FORMAT = 1  # part of the cache's key: to be raised when images are decoded in another way
CHUNK_SIZE = 128  # images per work item: one item per image was slower on CIFAR-10's small files in 3 of 3 runs

Step = TypeVar("Step")


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image on disk and its class; size and time of change tell whether a cache still shows this image.

    Args:
        path: Where it is.
        label: Its class.
        size: Length of the file in bytes.
        modified: Time of the last change in nanoseconds.
    """

    path: str
    label: int
    size: int
    modified: int


class ImageReader:
    """Reads the images of a split: from the files the first time, from one cache file per split after that.

    The key in the cache file's name is a hash over the relative paths, sizes and times of change of all images, so a
    changed, added or removed image makes a new one. Where no cache can be written, images are decoded at every start.

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
        if path not in self._kept and _open_cache(path, len(files)) is None:
            self._decode(split, path, files)

    def read(self, split: str, files: Sequence[ImageFile]) -> tuple[Tensor, Tensor]:
        """Images (number, 3, height, width) as ``uint8`` and labels, in the order of the files."""
        path = self._cache_file(split, files)
        labels = torch.tensor([file.label for file in files])
        if path in self._kept:
            return self._kept[path], labels
        cached = _open_cache(path, len(files))
        if cached is None:
            return self._decode(split, path, files), labels
        # copied, not mapped: a run of days must not depend on a file that another run may replace
        return torch.from_numpy(numpy.array(cached)), labels

    def _cache_file(self, split: str, files: Sequence[ImageFile]) -> str:
        lines = [f"{CACHE_FORMAT} {self.image_size}"]
        lines += [f"{file.path.removeprefix(self.root)}\0{file.size}\0{file.modified}" for file in files]
        key = hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()
        return os.path.join(self.folder, f"{split}-{key}.npy")

    def _decode(self, split: str, path: str, files: Sequence[ImageFile]) -> Tensor:
        images = decode_images(files, self.image_size, f"Decoding {len(files)} {split} images")
        try:
            os.makedirs(self.folder, exist_ok=True)
            _write_cache(path, images)
            _remove_others(path, split)
        except OSError as error:
            if _open_cache(path, len(files)) is None:  # it is there if another rank was faster and tidied up
                rank_zero_warn(f"cannot write a cache in {self.folder}, so the next start decodes again: {error}")
                self._kept[path] = images
        return images


def full_path(path: str) -> str:
    """The absolute path, with ``~`` filled in."""
    return os.path.abspath(os.path.expanduser(path))


def tree_classes(root: str) -> list[str]:
    """Names of the classes of a ``train|test/<class>/`` tree in alphabetical order, which is that of the labels."""
    root = full_path(root)
    if not os.path.isdir(root):
        raise ConfigurationError(f"root must be a folder with train/<class>/ and test/<class>/, got {root}: not there")
    train, test = (_class_folders(os.path.join(root, split)) for split in ("train", "test"))
    for here, there, missing in (("train", "test", train - test), ("test", "train", test - train)):
        if missing:
            raise ConfigurationError(
                f"train and test must have the same classes, but of those in {os.path.join(root, here)} "
                f"{sorted(missing)} are not in {os.path.join(root, there)}"
            )
    return sorted(train)


def tree_images(root: str, split: str, classes: Sequence[str]) -> list[ImageFile]:
    """All images of one split of a ``train|test/<class>/`` tree, class by class."""
    folders = [os.path.join(full_path(root), split, name) for name in classes]
    return [file for label, folder in enumerate(folders) for file in list_images(folder, label)]


def list_images(folder: str, label: int) -> list[ImageFile]:
    """The images right in a folder, in alphabetical order; at least one."""
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith("."):
                    status = entry.stat()
                    files.append(ImageFile(entry.path, label, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise ConfigurationError(f"cannot read the images in {folder}: {error}") from error
    if not files:
        raise ConfigurationError(f"{folder} must hold at least one image ({' '.join(IMAGE_SUFFIXES)}), but has none")
    return sorted(files, key=lambda file: file.path)


def decode_images(files: Sequence[ImageFile], image_size: int | None, description: str) -> Tensor:
    """Decode images in parallel to one ``uint8`` tensor (number, 3, height, width).

    Args:
        files: The images.
        image_size: Height and width to resize to; ``None`` if all images have one size already.
        description: What the progress bar says.
    """
    first = decode_image(files[0].path, image_size)
    height, width, _ = first.shape
    images = numpy.empty((len(files), 3, height, width), dtype=numpy.uint8)

    def decode_chunk(start: int) -> None:
        for index, file in enumerate(files[start : start + CHUNK_SIZE], start):
            pixels = decode_image(file.path, image_size)
            if pixels.shape != first.shape:
                raise ConfigurationError(
                    f"all images must have one size, but {file.path} is {pixels.shape[1]}x{pixels.shape[0]} and "
                    f"{files[0].path} is {width}x{height}: SplitImageFolder resizes them if image_size is given"
                )
            images[index] = pixels.transpose(2, 0, 1)

    starts = range(0, len(files), CHUNK_SIZE)
    with ThreadPoolExecutor() as pool:
        for _ in show_progress(pool.map(decode_chunk, starts), description, len(starts)):
            pass
    return torch.from_numpy(images)


def decode_image(path: str, image_size: int | None) -> NDArray[numpy.uint8]:
    """One image as RGB (height, width, 3)."""
    try:
        with Image.open(path) as image:
            if image.mode == "F" or image.mode.startswith("I"):  # Pillow would clip these to white without a word
                raise ValueError(f"its pixels must have 8 bits per channel, got mode {image.mode}")
            decoded = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ConfigurationError(f"cannot decode the image {path}: {error}") from error
    if image_size is not None:
        decoded = decoded.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return numpy.asarray(decoded)


def show_progress(steps: Iterable[Step], description: str, total: int) -> Iterable[Step]:
    """Iterate with a progress bar, on the first rank only."""
    is_first = getattr(rank_zero_only, "rank", 0) == 0
    return track(steps, description, total, console=Console(stderr=True), transient=True, disable=not is_first)


def _class_folders(folder: str) -> set[str]:
    if not os.path.isdir(folder):
        raise ConfigurationError(f"expected the folder {folder} with a sub-folder for each class: it is not there")
    with os.scandir(folder) as entries:
        classes = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    if not classes:
        raise ConfigurationError(f"expected a sub-folder for each class in {folder}: there are none")
    return classes


def _open_cache(path: str, number: int) -> NDArray[numpy.uint8] | None:
    try:
        images = numpy.lib.format.open_memmap(path, mode="r")  # refuses pickled objects and files cut short
    except Exception:  # a damaged header fails in many ways, and each means the same: decode again
        return None
    return images if images.dtype == numpy.uint8 and images.ndim == 4 and images.shape[:2] == (number, 3) else None


def _write_cache(path: str, images: Tensor) -> None:
    temporary = f"{path}.{uuid.uuid4().hex}"  # a name of its own: several ranks may write at once
    try:
        with open(temporary, "xb") as file:
            numpy.save(file, images.numpy(), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave a whole file of zeros under the final name
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            os.remove(temporary)


def _remove_others(path: str, split: str) -> None:
    with os.scandir(os.path.dirname(path)) as entries:
        for entry in entries:
            if entry.name.startswith(f"{split}-") and entry.name != os.path.basename(path):
                with suppress(FileNotFoundError):
                    os.remove(entry.path)
