"""Split CIFAR-10 and Split CIFAR-100, from torchvision's files or a folder tree of the same images."""

import os
from typing import Any, ClassVar

import torch
from torch import Tensor

from ddn_lightning.data.image_reader import ImageReader
from ddn_lightning.data.image_tree import full_path, tree_classes, tree_images
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError

IMAGE_SHAPE = (3, 32, 32)
# class names in label order
CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
""".split()  # noqa: SIM905  # a list literal would take a hundred lines


class _SplitCIFAR(TaskSequence):
    # common base of both datasets
    class_names: ClassVar[list[str]]
    torchvision_class: ClassVar[str]
    torchvision_folder: ClassVar[str]

    def __init__(self, root: str, download: bool, num_tasks: int, **kwargs: Any) -> None:
        super().__init__(num_tasks=num_tasks, **kwargs)
        self.root = full_path(root)
        self.download = download
        self._reader = ImageReader(self.root)

    def prepare_data(self) -> None:
        """On one rank: decode a folder tree into its cache, or open torchvision's files, downloading if asked to."""
        if self._has_tree():
            for split in ("train", "test"):
                self._reader.prepare(split, tree_images(self.root, split, self._classes()))
        else:
            self._open(train=False, download=self.download)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The official training or test split."""
        if not self._has_tree():
            dataset = self._open(train)
            return torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(dataset.targets)
        split = "train" if train else "test"
        images, labels = self._reader.read(split, tree_images(self.root, split, self._classes()))
        if images.shape[1:] != IMAGE_SHAPE:
            raise ConfigurationError(
                f"the images of {type(self).__name__} must be 32x32, but those in {os.path.join(self.root, split)} are "
                f"{images.shape[3]}x{images.shape[2]}"
            )
        return images, labels

    def _has_tree(self) -> bool:
        """Whether to read a folder tree: torchvision's files take precedence."""
        folders = [os.path.join(self.root, name) for name in ("train", "test")]
        return all(map(os.path.isdir, folders)) and not os.path.isdir(os.path.join(self.root, self.torchvision_folder))

    def _classes(self) -> list[str]:
        """The tree's folder names in label order: the official class names, or numbers."""
        found = tree_classes(self.root)
        numbers = [str(label) for label in range(self.num_classes)]
        for expected in (self.class_names, numbers):
            if set(found) == set(expected):
                return expected
        strange = sorted(set(found) - set(self.class_names))
        raise ConfigurationError(
            f"{self.root} must have a folder for each of the {self.num_classes} classes of {type(self).__name__}, "
            f"named by class ({', '.join(self.class_names[:3])}, ...) or by number, but has {len(found)}, among them "
            f"{strange[:3]}: use SplitImageFolder for another dataset"
        )

    def _open(self, train: bool, download: bool = False) -> Any:  # torchvision has no type annotations
        from torchvision import datasets  # here: importing torchvision slows down every start

        try:
            return getattr(datasets, self.torchvision_class)(self.root, train=train, download=download)
        except (RuntimeError, OSError) as error:
            if download:
                raise ConfigurationError(
                    f"cannot download {self.torchvision_class} to {self.root}: {error}; check the connection, or put "
                    "the files there and leave out download=True"
                ) from error
            raise ConfigurationError(
                f"expected {self.torchvision_class} in {self.root}, either as torchvision's folder "
                f"{self.torchvision_folder}, which download=True fetches, or as images in train/<class>/ and "
                f"test/<class>/; found neither, or damaged files"
            ) from error


class SplitCIFAR10(_SplitCIFAR):
    """CIFAR-10, 60,000 images of 32x32 pixels, in five tasks of two classes.

    Origin: A. Krizhevsky, `Learning Multiple Layers of Features from Tiny Images
    <https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf>`_, 2009. A folder tree ``train/<class>/*`` and
    ``test/<class>/*`` works too; it is cached in ``.ddn_cache`` inside the folder.

    Args:
        root: Folder with torchvision's ``cifar-10-batches-py``, or with ``train`` and ``test``.
        download: Download the files if they are missing.
        num_tasks: Number of tasks; must divide the number of classes.
        **kwargs: Arguments of :class:`TaskSequence`.
    """

    name = "cifar10"
    mean = (0.4914, 0.4822, 0.4465)  # of the training split, in [0, 1]
    std = (0.2470, 0.2435, 0.2615)
    num_classes = 10
    class_names = CIFAR10_CLASSES
    torchvision_class = "CIFAR10"
    torchvision_folder = "cifar-10-batches-py"

    def __init__(self, root: str = "data", download: bool = False, num_tasks: int = 5, **kwargs: Any) -> None:
        super().__init__(root, download, num_tasks, **kwargs)


class SplitCIFAR100(_SplitCIFAR):
    """CIFAR-100 with its fine labels, 60,000 images of 32x32 pixels, in ten tasks of ten classes.

    Origin: as :class:`SplitCIFAR10`.

    Args:
        root: Folder with torchvision's ``cifar-100-python``, or with ``train`` and ``test``.
        download: Download the files if they are missing.
        num_tasks: Number of tasks; must divide the number of classes.
        **kwargs: Arguments of :class:`TaskSequence`.
    """

    name = "cifar100"
    mean = (0.5071, 0.4867, 0.4408)  # of the training split, in [0, 1]
    std = (0.2675, 0.2565, 0.2761)
    num_classes = 100
    class_names = CIFAR100_CLASSES
    torchvision_class = "CIFAR100"
    torchvision_folder = "cifar-100-python"

    def __init__(self, root: str = "data", download: bool = False, num_tasks: int = 10, **kwargs: Any) -> None:
        super().__init__(root, download, num_tasks, **kwargs)
