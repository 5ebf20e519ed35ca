"""Split image folder: a task sequence from any folder tree of images, one sub-folder per class."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.image_reader import ImageReader, InMemory
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.image_tree import ImageFile, tree_classes, tree_images
from ddn_lightning.data.plan import PlannedSamples
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive

VALUES_AT_ONCE = 2**24  # copied at a time to measure mean and std


class SplitImageFolder(TaskSequence):
    """Your own images in ``train/<class>/*`` and ``test/<class>/*``, decoded once and cached.

    The classes are the sub-folders in alphabetical order. The images are RGB, turned upright by their EXIF data, with a
    white background where they are transparent. Training images are randomly cropped and mirrored; pass ``flip=False``
    where left and right matter, as in digits, letters or signs.

    Args:
        root: Folder that holds ``train`` and ``test``.
        num_tasks: Number of tasks; must divide the number of classes.
        image_size: Height and width to resize every image to, ignoring its aspect ratio; ``None`` if all images have
            one size already.
        mean: Mean of red, green and blue, of pixel values in [0, 1]; ``None`` to measure it on the training images.
        std: Standard deviation of red, green and blue; ``None`` to measure it on the training images.
        padding: Black border around a training image before its random crop; 0 for no crop.
        flip: Whether to mirror training images at random.
        cache_dir: Folder for the decoded images; ``None`` for ``.ddn_cache`` in ``root``.
        in_memory: Whether to hold the images in memory, or to map the file of decoded images, which may be larger;
            ``"auto"`` maps a split that takes more than 2 GiB. The numbers are the same.
        **kwargs: Arguments of :class:`TaskSequence`.

    Example:
        >>> SplitImageFolder("data/signs", num_tasks=5, image_size=32, flip=False)  # doctest: +SKIP
    """

    name = "image_folder"

    def __init__(
        self,
        root: str,
        num_tasks: int = 5,
        image_size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        padding: int = 4,
        flip: bool = True,
        cache_dir: str | None = None,
        in_memory: InMemory = "auto",
        **kwargs: Any,
    ) -> None:
        check_positive(image_size=1 if image_size is None else image_size)
        check_not_negative(padding=padding)
        self._given_mean = None if mean is None else _three_numbers("mean", mean)
        self._given_std = None if std is None else _three_numbers("std", std)
        self.mean = self._given_mean or (0.0, 0.0, 0.0)  # measured in setup unless given
        self.std = self._given_std or (1.0, 1.0, 1.0)
        self.padding = padding
        self.flip = flip
        self.class_names = self.find_classes(root)
        self.num_classes = len(self.class_names)
        super().__init__(num_tasks=num_tasks, **kwargs)
        self._reader = ImageReader(root, image_size, cache_dir, in_memory)
        self._is_measured = mean is not None and std is not None

    def find_classes(self, root: str) -> list[str]:
        """The class names in label order."""
        return tree_classes(root)

    def files(self, split: str) -> list[ImageFile]:
        """The images of a split in their order."""
        return tree_images(self._reader.root, split, self.class_names)

    def prepare_data(self) -> None:
        """Decode both splits into the cache, on one rank."""
        for split in ("train", "test"):
            self._reader.prepare(split, self.files(split))

    def setup(self, stage: str) -> None:
        """Load the splits that the stage needs, and measure mean and std unless given."""
        super().setup(stage)
        if not self._is_measured:
            training = self.train_set if hasattr(self, "train_set") else self._split(train=True)
            images = training.source if isinstance(training, PlannedSamples) else training.images
            mean, std = channel_statistics(images)
            self.mean = self._given_mean or mean
            self.std = self._given_std or std
            self.transform = ImageTransform(self.mean, self.std, self.padding, self.flip)
            self._is_measured = True

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The images of one split, from the cache if it is up to date."""
        split = "train" if train else "test"
        return self._reader.read(split, self.files(split))


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of ``uint8`` images, scaled to [0, 1].

    Computed from a histogram, which is exact and needs no float copy of the images. The standard deviation of a
    constant channel is 1/255 instead of 0, because images are divided by it.

    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    counts = torch.zeros(images.shape[1], 256, dtype=torch.long)
    for chunk in torch.split(images, max(1, VALUES_AT_ONCE // images[0].numel())):
        for channel in range(images.shape[1]):
            counts[channel] += torch.bincount(chunk[:, channel].flatten(), minlength=256)
    weights = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = weights @ values
    variance = (weights * (values - mean[:, None]) ** 2).sum(1)
    return tuple(mean.tolist()), tuple(variance.sqrt().clamp_min(1 / 255).tolist())


def _three_numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    if len(values) != 3:
        raise ConfigurationError(f"{name} must be three numbers, for red, green and blue, got {list(values)}")
    return tuple(float(value) for value in values)
