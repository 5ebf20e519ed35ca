"""Which data a run was trained on, in a few numbers, and how other data differs."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError

IMAGES_AT_ONCE = 4096  # that are brought into one piece of memory, if they are not
MOST_NAMES = 6  # that fit in a message


@dataclass(frozen=True)
class SplitFacts:
    """What is known of the images of one split.

    Args:
        image_shape: Channels, height, width.
        images_per_class: How many images each class has.
        labels_checksum: Over all labels in their order.
        images_checksum: Over all pixels, in their order: 150 MB of them, as CIFAR has, take less than 0.1 s.
    """

    image_shape: tuple[int, ...]
    images_per_class: tuple[int, ...]
    labels_checksum: str
    images_checksum: str

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, num_classes: int) -> "SplitFacts":
        """The facts of checked images."""
        counts = labels.bincount(minlength=num_classes).tolist()
        return cls(tuple(images.shape[1:]), tuple(counts), _checksum(labels), _checksum(images))


@dataclass(frozen=True)
class DataRecord:
    """What decides which label is which, and what was seen under it.

    Args:
        class_names: Names of the classes in the order of their labels, where the data has any.
        mean: What the images are normalised by.
        std: See ``mean``.
        train: The training images, if they were loaded.
        test: The test images, if they were loaded.
    """

    class_names: tuple[str, ...] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: SplitFacts | None
    test: SplitFacts | None

    def as_plain(self) -> dict[str, Any]:
        """Only lists, numbers, strings and dictionaries, for a checkpoint or a JSON file."""
        plain: dict[str, Any] = _without_tuples(asdict(self))
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "DataRecord":
        """The opposite of :meth:`as_plain`."""
        try:
            names, train, test = plain["class_names"], plain["train"], plain["test"]
            return cls(
                class_names=None if names is None else tuple(map(str, names)),
                mean=tuple(map(float, plain["mean"])),
                std=tuple(map(float, plain["std"])),
                train=None if train is None else _facts(train),
                test=None if test is None else _facts(test),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"the record of the data is damaged ({type(error).__name__}: {error})") from error

    def difference(self, given: "DataRecord", whose: str) -> str | None:
        """A sentence on the first thing in which given data is not this data; ``None`` if nothing is known to differ.

        Args:
            given: The other data.
            whose: Whose data this is, such as ``the checkpoint``.
        """
        if self.class_names and given.class_names and self.class_names != given.class_names:
            return _other_names(self.class_names, given.class_names, whose)
        for split in ("train", "test"):
            there, here = getattr(self, split), getattr(given, split)
            if there is not None and here is not None and there != here:
                names = given.class_names or tuple(map(str, range(len(here.images_per_class))))
                return f"the {split} images must be those of {whose}, but {_other_images(there, here, names)}"
        return None


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
    shape, counts = (tuple(map(int, plain[name])) for name in ("image_shape", "images_per_class"))
    return SplitFacts(shape, counts, str(plain["labels_checksum"]), str(plain["images_checksum"]))


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tuples(part) for key, part in value.items()}
    return [_without_tuples(part) for part in value] if isinstance(value, tuple) else value


def _checksum(values: Tensor) -> str:
    checksum = 0
    for part in torch.split(values, IMAGES_AT_ONCE):
        checksum = zlib.crc32(part.cpu().contiguous().numpy().data, checksum)
    return f"{checksum:08x}"
