"""Benchmarks whose images are in lists, CUB-200 and mini-ImageNet, and ImageNet-100, by the list of its classes."""

import csv
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy

from ddn_lightning.data.image_tree import ImageFile, class_folders, full_path, list_images
from ddn_lightning.data.split_image_folder import SplitImageFolder
from ddn_lightning.errors import ConfigurationError

MINI_PER_CLASS = 600  # images, of which the first 500 are for training
MINI_TRAINING = 500


class SplitCUB200(SplitImageFolder):
    """Caltech-UCSD Birds 200-2011, in ten tasks of twenty species, by the official split.

    Origin: C. Wah et al., `The Caltech-UCSD Birds-200-2011 Dataset
    <https://www.vision.caltech.edu/datasets/cub_200_2011/>`_, 2011.

    Args:
        root: The folder ``CUB_200_2011`` with ``images.txt``, ``train_test_split.txt``, ``classes.txt`` and ``images``.
        num_tasks: Number of tasks; must divide the number of classes.
        image_size: Height and width to resize every image to.
        **kwargs: Arguments of :class:`SplitImageFolder`.
    """

    name = "cub200"

    def __init__(self, root: str, num_tasks: int = 10, image_size: int = 224, **kwargs: Any) -> None:
        super().__init__(root, num_tasks, image_size, **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The species, in the order of ``classes.txt``."""
        return [line[1] for line in _lines(os.path.join(full_path(root), "classes.txt"))]

    def files(self, split: str) -> list[ImageFile]:
        """The images that ``train_test_split.txt`` gives to a split."""
        root, flag = self._reader.root, "1" if split == "train" else "0"
        chosen = {number for number, given in _lines(os.path.join(root, "train_test_split.txt")) if given == flag}
        named = [path for number, path in _lines(os.path.join(root, "images.txt")) if number in chosen]
        return _listed(os.path.join(root, "images"), self.class_names, named)


class SplitMiniImageNet(SplitImageFolder):
    """mini-ImageNet, 600 images of each of 100 classes, in twenty tasks of five.

    Origin: O. Vinyals et al., `Matching Networks <https://arxiv.org/abs/1606.04080>`_, 2016, with the lists of Ravi and
    Larochelle, 2017. Those divide the *classes* for few-shot learning; in continual learning all classes are learned,
    and the first 500 images of each, in the order of the lists, are for training.

    Args:
        root: Folder with ``train.csv``, ``val.csv``, ``test.csv``, of lines ``filename,label``, and ``images``.
        num_tasks: Number of tasks; must divide the number of classes.
        image_size: Height and width to resize every image to.
        **kwargs: Arguments of :class:`SplitImageFolder`.
    """

    name = "mini_imagenet"

    def __init__(self, root: str, num_tasks: int = 20, image_size: int = 84, **kwargs: Any) -> None:
        super().__init__(root, num_tasks, image_size, **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The identifiers of ImageNet, in the order of the lists."""
        return list(_mini_lists(root))

    def files(self, split: str) -> list[ImageFile]:
        """The first images of each class, or the others."""
        root, files = self._reader.root, []
        part = slice(MINI_TRAINING) if split == "train" else slice(MINI_TRAINING, None)
        for label, (name, names) in enumerate(_mini_lists(root).items()):
            if len(names) != MINI_PER_CLASS:
                raise ConfigurationError(
                    f"the lists in {root} must have {MINI_PER_CLASS} images of {name}, got {len(names)}"
                )
            files += [_file(os.path.join(root, "images", one), label) for one in names[part]]
        return files


class SplitImageNet100(SplitImageFolder):
    """ImageNet-100: the 100 classes of ImageNet that iCaRL and many others use, in ten tasks of ten.

    They are the first 100 of the 1,000 in the order of seed 1993, which is also the order of the classes here. The test
    split is the official validation split, sorted into folders by class.

    Args:
        root: Folder with ``train/<identifier>/*`` and ``val/<identifier>/*`` of all 1,000 classes.
        num_tasks: Number of tasks; must divide the number of classes.
        image_size: Height and width to resize every image to.
        **kwargs: Arguments of :class:`SplitImageFolder`.
    """

    name = "imagenet100"

    def __init__(self, root: str, num_tasks: int = 10, image_size: int = 224, **kwargs: Any) -> None:
        super().__init__(root, num_tasks, image_size, **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The identifiers of the chosen classes, in their order."""
        known = sorted(class_folders(os.path.join(full_path(root), "train")))
        if len(known) != 1000:
            raise ConfigurationError(f"{root}/train must have the 1000 classes of ImageNet, got {len(known)}")
        order = numpy.random.RandomState(1993).permutation(1000)  # legacy, as the published order
        return [known[number] for number in order[:100]]

    def files(self, split: str) -> list[ImageFile]:
        """The images of the chosen classes."""
        folder = os.path.join(self._reader.root, "train" if split == "train" else "val")
        return list_images([os.path.join(folder, name) for name in self.class_names])


def _lines(path: str) -> list[list[str]]:
    """The words of each line of a text file."""
    try:
        with open(path, encoding="utf-8") as file:
            return [line.split() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}, a part of the dataset: {error}") from error


def _mini_lists(root: str) -> dict[str, list[str]]:
    """The file names of each class, both in the order of the three lists."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in ("train.csv", "val.csv", "test.csv"):
        rows = csv.DictReader([" ".join(words) for words in _lines(os.path.join(full_path(root), name))])
        for row in rows:
            found[row["label"]].append(row["filename"])
    return dict(found)


def _listed(folder: str, classes: list[str], paths: Iterable[str]) -> list[ImageFile]:
    """The images at paths ``<class>/<name>``."""
    labels = {name: label for label, name in enumerate(classes)}
    return [_file(os.path.join(folder, path), labels[os.path.dirname(path)]) for path in paths]


def _file(path: str, label: int) -> ImageFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}, which the lists name: {error}") from error
    return ImageFile(path, label, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
