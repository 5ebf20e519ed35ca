"""Split MNIST, Fashion-MNIST, EMNIST letters and SVHN, from torchvision's files."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from ddn_lightning.data.image_tree import full_path
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError


@dataclass(frozen=True)
class Original:
    """A dataset of torchvision: its class and constants, and the tasks of papers."""

    class_name: str
    class_names: tuple[str, ...]
    num_tasks: int
    mean: tuple[float, ...]  # of pixel values in [0, 1]
    std: tuple[float, ...]
    padding: int


DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
ORIGINALS = MappingProxyType(
    {
        "mnist": Original("MNIST", DIGITS, 5, (0.1307,), (0.3081,), 0),
        "fashion_mnist": Original("FashionMNIST", CLOTHES, 5, (0.2860,), (0.3530,), 0),
        "emnist_letters": Original("EMNIST", tuple("abcdefghijklmnopqrstuvwxyz"), 13, (0.1722,), (0.3309,), 0),
        "svhn": Original("SVHN", DIGITS, 5, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), 4),
    }
)


class SplitTorchvision(TaskSequence):
    """A dataset of torchvision by its class: MNIST, Fashion-MNIST or SVHN in 5 tasks, EMNIST letters in 13.

    Each task has two classes. No image is mirrored; those of SVHN are shifted at random. EMNIST's are turned upright.

    Args:
        dataset: Which one.
        root: torchvision's folder.
        download: Download the files if they are missing.
        num_tasks: Number of tasks; by default that of two classes each.
        **kwargs: Arguments of :class:`TaskSequence`.

    Example:
        >>> SplitTorchvision("svhn", download=True)  # doctest: +SKIP
    """

    flip = False

    def __init__(
        self,
        dataset: Literal["mnist", "fashion_mnist", "emnist_letters", "svhn"],
        root: str = "data",
        download: bool = False,
        num_tasks: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.original = original = ORIGINALS[dataset]
        self.name = dataset
        self.class_names, self.num_classes = list(original.class_names), len(original.class_names)
        self.mean, self.std, self.padding = original.mean, original.std, original.padding
        super().__init__(num_tasks=num_tasks or original.num_tasks, **kwargs)
        self.root = full_path(root)
        self.download = download

    def prepare_data(self) -> None:
        """On one rank: open torchvision's files, downloading if asked to."""
        for train in (True, False):
            self._open(train, self.download)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The official training or test split."""
        opened = self._open(train)
        if self.name == "svhn":
            return torch.from_numpy(opened.data), torch.from_numpy(opened.labels).long()
        images, labels = opened.data[:, None], opened.targets
        if self.name == "emnist_letters":
            return images.transpose(2, 3).contiguous(), labels - 1  # which count from 1
        return images, labels

    def _open(self, train: bool, download: bool = False) -> Any:  # torchvision has no type annotations
        from torchvision import datasets  # here: importing torchvision slows down every start

        chosen: dict[str, Any] = {"split": "train" if train else "test"} if self.name == "svhn" else {"train": train}
        if self.name == "emnist_letters":
            chosen["split"] = "letters"
        try:
            return getattr(datasets, self.original.class_name)(self.root, download=download, **chosen)
        except (RuntimeError, OSError) as error:
            what = "cannot download" if download else "expected, as download=True fetches it,"
            raise ConfigurationError(
                f"{what} torchvision's {self.original.class_name} in {self.root}: {error}"
            ) from error
