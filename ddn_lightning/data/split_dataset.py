"""Split dataset: a task sequence from any two map-style datasets."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ddn_lightning.data.dataset_reader import COLUMNS, MapDataset, class_names_of, read_dataset
from ddn_lightning.data.image_transform import Given, ImageTransform
from ddn_lightning.data.split_image_folder import channel_statistics
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive


class SplitDataset(TaskSequence):
    """Datasets of torchvision, Hugging Face or your own, read into memory once, here.

    A sample is ``(image, label)``, or a row such as ``{"image": ..., "label": ...}``. An image is a PIL
    image, a tensor with the channels first or a NumPy array with the channels last, of ``uint8`` values or of floats
    k/255 as torchvision's ``ToTensor`` makes them. The datasets' own transforms are applied; random ones are refused,
    because the sequence augments each batch. PIL images are read as those of
    :class:`~ddn_lightning.data.split_image_folder.SplitImageFolder`, but grey ones stay grey if all are.

    Args:
        train: Training samples.
        test: Test samples.
        num_tasks: Number of tasks; must divide the number of classes.
        image_size: Height and width to resize every image to; ``None`` if all images have one size already.
        mean: Mean of each channel, of pixel values in [0, 1]; ``None`` to measure it on the training images.
        std: Standard deviation of each channel; ``None`` to measure it on the training images.
        padding: Black border around a training image before its random crop; 0 for no crop.
        flip: Whether to mirror training images at random: say ``False`` where left and right matter, as in digits.
        transform: Used instead of one with ``mean``, ``std``, ``padding`` and ``flip``; or your augmentation instead
            of crop and flip, as ``augment`` of :class:`ImageTransform`.
        image: Column of the image in rows; by default ``image`` or ``img``.
        label: Column of the label in rows; by default ``label`` or ``labels``.
        class_names: Names in label order; ``None`` for the datasets' own, if they have any.
        name: Name of the data in results and reports.
        **kwargs: Arguments of :class:`TaskSequence`.

    A subclass that opens its datasets is a choice of the command line, as ``--data module.Class``.

    Example:
        >>> from PIL import Image
        >>> stripes = [(Image.new("L", (8, 8), 60 * label), label) for label in [0, 1, 2, 3] * 5]
        >>> SplitDataset(stripes, stripes, num_tasks=2).task_classes
        tensor([[0, 1],
                [2, 3]])
    """

    name = "dataset"

    def __init__(
        self,
        train: MapDataset,
        test: MapDataset,
        num_tasks: int,
        image_size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        padding: int = 4,
        flip: bool = True,
        transform: Given = None,
        image: str | None = None,
        label: str | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "dataset",
        **kwargs: Any,
    ) -> None:
        check_positive(image_size=1 if image_size is None else image_size)
        check_not_negative(padding=padding)
        images_in, labels_in = COLUMNS
        columns = ((image,) if image else images_in, (label,) if label else labels_in)
        self.class_names = _names(train, test, columns[1]) if class_names is None else list(class_names)
        self._splits = {
            True: read_dataset(train, "train", image_size, columns),
            False: read_dataset(test, "test", image_size, columns),
        }
        images, labels = self._splits[True]
        highest = max(int(labels.max()) for _, labels in self._splits.values())
        self.num_classes = len(self.class_names) if self.class_names else highest + 1
        _check_classes(labels, highest, self.num_classes)
        measured_mean, measured_std = channel_statistics(images)
        self.name = name
        self.mean = measured_mean if mean is None else tuple(mean)
        self.std = measured_std if std is None else tuple(std)
        self.padding = padding
        self.flip = flip
        super().__init__(num_tasks=num_tasks, **kwargs)
        self._is_measured = not isinstance(transform, ImageTransform) and (mean is None or std is None)
        self.transform = ImageTransform.of(transform, self.transform)
        for option, channels in (("mean and std", len(self.mean)), ("transform", len(self.transform.scale))):
            if channels != images.shape[1]:
                raise ConfigurationError(f"{option} must be of {images.shape[1]} channels, got {channels}")

    def setup(self, stage: str) -> None:
        """Set up the splits that the stage needs, and note the training images if mean or std was measured on them."""
        super().setup(stage)
        if self._is_measured and not hasattr(self, "train_set"):
            self._split(train=True)  # an evaluation is refused if they are not those of the checkpoint

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The training or test samples."""
        return self._splits[train]


def _names(train: MapDataset, test: MapDataset, label_columns: Sequence[str]) -> list[str] | None:
    names, others = class_names_of(train, label_columns), class_names_of(test, label_columns)
    if names and others and names != others:
        pairs = zip(names, others, strict=False)
        label = next((label for label, (here, there) in enumerate(pairs) if here != there), None)
        found = f"{len(names)} and {len(others)} names" if label is None else f"{names[label]!r} and {others[label]!r}"
        where = "" if label is None else f" for class {label}"
        raise ConfigurationError(f"train and test must have the same classes in the same order, got {found}{where}")
    return names or others


def _check_classes(labels: Tensor, highest: int, num_classes: int) -> None:
    if highest >= num_classes:
        raise ConfigurationError(f"labels must be from 0 to {num_classes - 1}, one for each name, got {highest}")
    missing = (labels.bincount(minlength=num_classes) == 0).nonzero().flatten().tolist()
    if missing:
        hint = ": labels count from 0, subtract 1" if missing == [0] else ""
        raise ConfigurationError(
            f"train must have samples of every class from 0 to {num_classes - 1}, but has none of "
            f"{', '.join(map(str, missing[:6]))}{', ...' * (len(missing) > 6)}{hint}"
        )
