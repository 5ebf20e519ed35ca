"""A fingerprint of the data that a run was trained on, and how other data differs."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError

IMAGES_AT_ONCE = 4096  # made contiguous at a time, for the checksum
MOST_NAMES = 6  # class names listed in a message
HINTS = {  # by the beginning of a difference to the data of a checkpoint, for an evaluation
    "the train ": "to evaluate anyway, set data.mean and data.std to those of its results.json",
    "the test ": "'ddn test RUN FOLDER' evaluates on other images",
}


@dataclass(frozen=True)
class SplitFacts:
    """Fingerprint of one split."""

    image_shape: tuple[int, ...]  # channels, height, width
    images_per_class: tuple[int, ...]
    labels_checksum: str
    images_checksum: str  # over all pixels: CIFAR's 150 MB take less than 0.1 s

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, num_classes: int) -> "SplitFacts":
        """The fingerprint of a split that :func:`~ddn_lightning.data.loaded.checked` has passed."""
        counts = labels.bincount(minlength=num_classes).tolist()
        return cls(tuple(images.shape[1:]), tuple(counts), checksum(labels), checksum(images))


@dataclass(frozen=True)
class DataRecord:
    """Fingerprint of a dataset: the meaning of each label, and the images."""

    class_names: tuple[str, ...] | None  # in label order
    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]
    train: SplitFacts | None  # None if not loaded
    test: SplitFacts | None

    def as_plain(self) -> dict[str, Any]:
        """The record as JSON values, for a checkpoint or a file."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples become lists
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "DataRecord":
        """Inverse of :meth:`as_plain`."""
        names, train, test = plain["class_names"], plain["train"], plain["test"]
        return cls(
            class_names=None if names is None else tuple(names),
            mean=tuple(plain["mean"]),
            std=tuple(plain["std"]),
            train=None if train is None else _facts(train),
            test=None if test is None else _facts(test),
        )

    def difference(self, given: "DataRecord", whose: str) -> str | None:
        """A sentence about the first difference to given data; ``whose`` names the owner of this record."""
        if self.class_names and given.class_names and self.class_names != given.class_names:
            return _other_names(self.class_names, given.class_names, whose)
        for split in ("train", "test"):
            there, here = getattr(self, split), getattr(given, split)
            if there is not None and here is not None and there != here:
                names = given.class_names or tuple(map(str, range(len(here.images_per_class))))
                return f"the {split} images must be those of {whose}, but {_other_images(there, here, names)}"
        return None


def check_same_data(saved: Mapping[str, Any], given: DataRecord, is_fit: bool) -> None:
    """Refuse data that differ from those of a checkpoint."""
    difference = DataRecord.from_plain(saved).difference(given, "the checkpoint")
    if difference is not None:
        hints = [] if is_fit else [hint for start, hint in HINTS.items() if difference.startswith(start)]
        raise ConfigurationError("; ".join([difference, *hints]))


def _other_names(there: Sequence[str], here: Sequence[str], whose: str) -> str:
    demand = f"class_names must be those of {whose}"
    if len(there) == len(here) > MOST_NAMES:
        label = next(label for label, pair in enumerate(zip(there, here, strict=True)) if pair[0] != pair[1])
        return f"{demand}, but class {label} is {there[label]!r} there and {here[label]!r} here"
    if max(len(there), len(here)) > MOST_NAMES:
        return f"{demand}, but there are {len(there)} there and {len(here)} here"
    return f"{demand}, {list(there)}, got {list(here)}"


def _other_images(there: SplitFacts, here: SplitFacts, names: Sequence[str]) -> str:
    if there.image_shape != here.image_shape:
        return f"their shape is {there.image_shape} there and {here.image_shape} here"
    if there.images_per_class != here.images_per_class:
        counts = zip(names, there.images_per_class, here.images_per_class, strict=False)
        return next(
            (f"class {name} has {before} there and {now} here" for name, before, now in counts if before != now),
            f"there are {len(there.images_per_class)} classes there and {len(here.images_per_class)} here",
        )
    if there.labels_checksum != here.labels_checksum:
        return "their labels come in another order"
    return f"their pixels differ (checksum {there.images_checksum} there, {here.images_checksum} here)"


def _facts(plain: Mapping[str, Any]) -> SplitFacts:
    shape, counts = (tuple(plain[name]) for name in ("image_shape", "images_per_class"))
    return SplitFacts(shape, counts, plain["labels_checksum"], plain["images_checksum"])


def checksum(values: Tensor) -> str:
    """A fingerprint of a tensor, in eight digits."""
    found = 0
    for part in torch.split(values, IMAGES_AT_ONCE):
        found = zlib.crc32(part.cpu().contiguous().numpy().data, found)
    return f"{found:08x}"
