"""The classes and images of a folder tree.

Not torchvision's ``find_classes`` and ``make_dataset``, which follow sub-folders, count hidden folders as classes and
return no file sizes and times, which the cache's key needs.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddn_lightning.errors import ConfigurationError, note_once

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file and its class; size and times show whether a cache is up to date."""

    path: str
    label: int
    size: int  # bytes
    modified: int  # st_mtime_ns, which copying tools may set back
    changed: int  # st_ctime_ns, which they cannot; on Windows the creation time


def full_path(path: str) -> str:
    """The absolute path, with ``~`` expanded."""
    return os.path.abspath(os.path.expanduser(path))


def tree_classes(root: str) -> list[str]:
    """Class names of a ``train|test/<class>/`` tree in alphabetical order, the order of the labels."""
    root = full_path(root)
    if not os.path.isdir(root):
        raise ConfigurationError(f"root must contain train/<class>/ and test/<class>/, got {root}: it does not exist")
    train, test = (class_folders(os.path.join(root, split)) for split in ("train", "test"))
    for here, there, missing in (("train", "test", train - test), ("test", "train", test - train)):
        if missing:
            raise ConfigurationError(
                f"train and test must have the same classes, but of those in {os.path.join(root, here)} "
                f"{sorted(missing)} are not in {os.path.join(root, there)}"
            )
    return sorted(train)


def tree_domains(root: str) -> tuple[list[str], list[str]]:
    """Names of the domains and classes of a ``train|test/<domain>/<class>/`` tree, both in alphabetical order."""
    root = full_path(root)
    domains = tree_classes(root)
    folders = [os.path.join(root, split, domain) for split in ("train", "test") for domain in domains]
    classes = {folder: sorted(class_folders(folder)) for folder in folders}
    for folder, found in classes.items():
        if found != classes[folders[0]]:
            different = sorted(set(found) ^ set(classes[folders[0]]))
            raise ConfigurationError(
                f"every domain must have the same classes, but {different[:3]} are not in both {folders[0]} and "
                f"{folder}"
            )
    return domains, classes[folders[0]]


def class_folders(folder: str) -> set[str]:
    """Names of the sub-folders of a folder, one per class."""
    if not os.path.isdir(folder):
        raise ConfigurationError(f"expected the folder {folder} with a sub-folder for each class: it does not exist")
    with os.scandir(folder) as entries:
        classes = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    if not classes:
        raise ConfigurationError(f"expected a sub-folder for each class in {folder}: there are none")
    return classes


def tree_images(root: str, split: str, classes: Sequence[str]) -> list[ImageFile]:
    """The images of one split of a ``train|test/<class>/`` tree, class by class."""
    return list_images([os.path.join(full_path(root), split, name) for name in classes])


def list_images(folders: Sequence[str]) -> list[ImageFile]:
    """The images directly in each folder, in alphabetical order; a folder's index is their label."""
    files: list[ImageFile] = []
    skipped: list[os.DirEntry[str]] = []
    for label, folder in enumerate(folders):
        found, others = _images_in(folder, label)
        if not found:
            suffixes = " ".join(IMAGE_SUFFIXES)
            raise ConfigurationError(f"{folder} must hold at least one image ({suffixes}), but has none")
        files += found
        skipped += others
    _note_skipped(skipped, "an image is a file right in its class's folder whose name")
    return files


def images_below(folder: str) -> list[str]:
    """The images in a folder and in all folders within it, folder by folder in alphabetical order; at least one."""
    folders = [folder, *sorted(str(path) for path in Path(folder).rglob("*") if path.is_dir())]
    parts = [_images_in(one, label=0) for one in folders]
    _note_skipped([entry for _, others in parts for entry in others if not entry.is_dir()], "an image's name")
    found = [file.path for files, _ in parts for file in files]
    if not found:
        raise ConfigurationError(f"images must be a folder with images in it, got {folder}")
    return found


def _images_in(folder: str, label: int) -> tuple[list[ImageFile], list["os.DirEntry[str]"]]:
    """The images of a folder, and its other entries that are not hidden."""
    files, others = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not entry.name.lower().endswith(IMAGE_SUFFIXES) or entry.is_dir():
                    others.append(entry)
                    continue
                status = entry.stat()
                files.append(ImageFile(entry.path, label, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except OSError as error:
        raise ConfigurationError(f"cannot read the images in {folder}: {error}") from error
    return sorted(files, key=lambda file: file.path), others


def _note_skipped(entries: Sequence["os.DirEntry[str]"], what: str) -> None:
    """Note entries that are no images; ``what`` must end in one of the suffixes."""
    if entries:
        kinds = Counter("sub-folder" if entry.is_dir() else "file" for entry in entries)
        numbers = " and ".join(f"{number} {kind}{'s' * (number > 1)}" for kind, number in sorted(kinds.items()))
        example = min(entry.path for entry in entries)
        note_once(f"skipped {numbers} beside the images, such as {example}: {what} ends in {' '.join(IMAGE_SUFFIXES)}")
