"""Split Tiny ImageNet, from the official zip file or its unpacked folder."""

import os
import stat
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, ClassVar

import torch
from torch import Tensor

from ddn_lightning.data.decoding import show_progress
from ddn_lightning.data.image_reader import ImageReader, InMemory
from ddn_lightning.data.image_tree import ImageFile, full_path, list_images
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError

FOLDER = "tiny-imagenet-200"


class SplitTinyImageNet(TaskSequence):
    """Tiny ImageNet, 110,000 images of 64x64 pixels and 200 classes, in ten tasks of twenty classes.

    Origin: Y. Le and X. Yang, `Tiny ImageNet Visual Recognition Challenge
    <http://cs231n.stanford.edu/reports/2015/pdfs/yle_project.pdf>`_, 2015. The official test images have no labels, so
    the official validation split is the test split. Labels follow the order of ``wnids.txt``; ``class_names`` are the
    first names in ``words.txt``, or the identifiers of ``wnids.txt`` without that file.

    Args:
        root: Folder with ``tiny-imagenet-200``, or with the zip file to unpack there.
        download: Download the zip file if it is missing.
        num_tasks: Number of tasks; must divide the number of classes.
        in_memory: Whether to hold the images in memory, as for :class:`SplitImageFolder`.
        **kwargs: Arguments of :class:`TaskSequence`.
    """

    name = "tiny_imagenet"
    mean = (0.4802, 0.4480, 0.3975)  # of the training split, in [0, 1]
    std = (0.2770, 0.2691, 0.2821)
    num_classes = 200
    url: ClassVar[str] = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5: ClassVar[str] = "90528d7ca1a48142e341f4ef8d21d0de"

    def __init__(
        self,
        root: str = "data",
        download: bool = False,
        num_tasks: int = 10,
        in_memory: InMemory = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_tasks=num_tasks, **kwargs)
        self.root = full_path(root)
        self.folder = os.path.join(self.root, FOLDER)
        self.download = download
        self._reader = ImageReader(self.folder, in_memory=in_memory)

    def prepare_data(self) -> None:
        """On one rank: download and unpack if needed, and decode both splits into the cache."""
        archive = f"{self.folder}.zip"
        if not os.path.isdir(self.folder):
            if self.download and not os.path.exists(archive):
                self._fetch(archive)
            if os.path.exists(archive):
                _check_md5(archive, self.md5)
                _extract(archive, self.folder)
        for split in ("train", "test"):
            self._reader.prepare(split, self._files(split))

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The official training or validation split."""
        split = "train" if train else "test"
        return self._reader.read(split, self._files(split))

    def _fetch(self, archive: str) -> None:
        try:
            os.makedirs(self.root, exist_ok=True)
            torch.hub.download_url_to_file(self.url, archive)  # writes to a temporary file first
        except OSError as error:
            raise ConfigurationError(f"cannot download {self.url} to {archive}: {error}") from error

    @cached_property
    def class_names(self) -> list[str]:
        """A name for each class, in label order."""
        return _first_names(os.path.join(self.folder, "words.txt"), self._wnids())

    def _wnids(self) -> list[str]:
        """The identifiers of ``wnids.txt``, in label order."""
        path = os.path.join(self.folder, "wnids.txt")
        classes = [line for line in _read_lines(path) if line]
        different = len(set(classes))
        if not different == len(classes) == self.num_classes:
            raise ConfigurationError(
                f"{path} must name {self.num_classes} different classes, got {len(classes)} names, {different} of them "
                "different"
            )
        return classes

    def _files(self, split: str) -> list[ImageFile]:
        if not os.path.isdir(self.folder):
            raise ConfigurationError(
                f"expected Tiny ImageNet in {self.folder}: it does not exist. Set download=True, or put the official "
                f"{FOLDER}.zip into {self.root}"
            )
        classes = self._wnids()
        if split == "test":
            return _validation_images(os.path.join(self.folder, "val"), classes)
        return list_images([os.path.join(self.folder, "train", name, "images") for name in classes])


def _first_names(path: str, wnids: Sequence[str]) -> list[str]:
    """The first of the names in ``words.txt``; the identifier of a class that has none, or one that another has."""
    if not os.path.exists(path):
        return list(wnids)
    rows = (line.partition("\t") for line in _read_lines(path))
    words = {wnid: names.partition(",")[0].strip() for wnid, _, names in rows}
    names = [words.get(wnid) or wnid for wnid in wnids]
    return [wnid if names.count(name) > 1 else name for wnid, name in zip(wnids, names, strict=True)]


def _validation_images(folder: str, classes: Sequence[str]) -> list[ImageFile]:
    """The images listed in ``val_annotations.txt``, in its order."""
    annotations = os.path.join(folder, "val_annotations.txt")
    labels = {name: label for label, name in enumerate(classes)}
    found = {os.path.basename(file.path): file for file in list_images([os.path.join(folder, "images")])}
    files = []
    for number, line in enumerate(_read_lines(annotations), 1):
        if not line:
            continue
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in labels:
            raise ConfigurationError(f"{annotations}, line {number}: expected a class of wnids.txt, got {wnid!r}")
        if name not in found:
            raise ConfigurationError(f"{annotations}, line {number}: {name} is not in {os.path.join(folder, 'images')}")
        files.append(replace(found[name], label=labels[wnid]))
    empty = sorted(set(range(len(classes))) - {file.label for file in files})
    if empty:
        raise ConfigurationError(f"{annotations} must name an image of each class, but has none of {classes[empty[0]]}")
    return files


def _read_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}, a part of Tiny ImageNet: {error}") from error


def _check_md5(archive: str, expected: str) -> None:
    from torchvision.datasets.utils import calculate_md5  # here: importing torchvision slows down every start

    found = calculate_md5(archive)
    if found != expected:
        raise ConfigurationError(
            f"{archive} must have the md5 checksum {expected}, got {found}: delete it and fetch it again"
        )


def _extract(archive: str, folder: str) -> None:
    """Unpack to a temporary folder and rename it at the end, so that an existing folder is always complete."""
    try:
        with zipfile.ZipFile(archive) as packed, tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as temporary:
            members = packed.infolist()
            for member in members:
                _check_member(archive, member)
            for member in show_progress(members, f"Unpacking {os.path.basename(archive)}", len(members)):
                packed.extract(member, temporary)
            _move(os.path.join(temporary, FOLDER), folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"cannot unpack {archive} to {folder}: {error}") from error


def _check_member(archive: str, member: zipfile.ZipInfo) -> None:
    # also as Windows parses it, where a backslash separates and C: is absolute
    is_outside = any(
        path.is_absolute() or path.drive or ".." in path.parts
        for path in (PurePosixPath(member.filename), PureWindowsPath(member.filename))
    )
    if is_outside or stat.S_ISLNK(member.external_attr >> 16):
        raise ConfigurationError(
            f"{archive} must hold only files and folders below its own, got {member.filename}: nothing was unpacked"
        )


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.isdir(target):  # else another node has unpacked it
            raise
