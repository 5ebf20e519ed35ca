"""The images and labels of any map-style dataset, as ``uint8`` pixels and numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from ddn_lightning.data.decoding import decode_pixels, show_progress
from ddn_lightning.data.loaded import LIKELY_CHANNELS
from ddn_lightning.errors import ConfigurationError

Columns = tuple[tuple[str, ...], tuple[str, ...]]  # possible names of image and label in a row
COLUMNS = (("image", "img"), ("label", "labels"))  # of Hugging Face's
READ_TWICE = 8  # samples, to notice random transforms; a random flip is missed in 1 of 2**8 cases
TOLERANCE = 1e-3  # of 255 * value: rounding of float32 is below 1e-4
LEFT_TO_THE_SEQUENCE = "so leave normalising and augmenting to the sequence, which does both for each batch"

Pixels = NDArray[numpy.uint8]


class MapDataset(Protocol):
    """A dataset of torchvision, Hugging Face or one's own: samples by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def read_dataset(
    dataset: MapDataset, name: str, image_size: int | None = None, columns: Columns = COLUMNS
) -> tuple[Tensor, Tensor]:
    """Read each sample once: images (number, channels, height, width) as ``uint8``, and labels.

    A few are read twice, to notice random transforms. If grey and RGB images are mixed, all become RGB.

    Args:
        dataset: Yields (image, label), or rows with an image and a label. An image is a PIL image, a tensor with the
            channels first, or a NumPy array with the channels last, of ``uint8`` or of floats k/255.
        name: Its name in messages.
        image_size: Height and width to resize to; ``None`` if all images have one size already.
        columns: Names of image and label in rows.
    """
    _check_map_style(dataset, name)
    images, labels = numpy.empty((0, 0, 0, 0), dtype=numpy.uint8), list[int]()
    for index in show_progress(range(len(dataset)), f"Reading {len(dataset)} {name} samples", len(dataset)):
        pixels, label = _read(dataset, index, name, image_size, columns)
        if not labels:
            images = numpy.empty((len(dataset), *pixels.shape), dtype=numpy.uint8)
        if images.shape[1] == 1 and len(pixels) == 3:
            images = images.repeat(3, axis=1)
        _check_shape(pixels, images.shape[1:], f"{name}[{index}]", f"{name}[0]")
        images[index] = pixels
        labels.append(label)
    for index in range(0, len(dataset), -(-len(dataset) // READ_TWICE)):
        _check_unchanged(images[index], _read(dataset, index, name, image_size, columns)[0], f"{name}[{index}]")
    return torch.from_numpy(images), torch.tensor(labels)


def class_names_of(dataset: object, label_columns: Sequence[str] = COLUMNS[1]) -> list[str] | None:
    """The class names that a dataset of torchvision or Hugging Face has."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        columns = [features[column] for column in label_columns if column in features]
        names = getattr(columns[0], "names", None) if columns else None
    else:
        names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple):
        return None
    first = [name[0] if isinstance(name, tuple) and name else name for name in names]  # ImageNet's are synonyms
    return first if first and all(isinstance(name, str) for name in first) else None


def pixels_of(image: object, image_size: int | None) -> Pixels:
    """An image as (channels, height, width); raises ``ValueError`` with the reason if it cannot be one."""
    if isinstance(image, Image.Image):
        pixels = decode_pixels(image, image_size).pixels.transpose(2, 0, 1)
        return pixels[:1] if image.mode in ("1", "L") else pixels
    if isinstance(image, Tensor):
        values, place = (image.float() if image.is_floating_point() else image).detach().cpu().numpy(), 0
    elif isinstance(image, numpy.ndarray):
        values, place = image, -1
    else:
        raise ValueError(f"its image must be a PIL image, a tensor or an array, got {type(image).__name__}")
    if values.ndim == 2:
        values = numpy.expand_dims(values, place)
    _check_channels(values, place)
    pixels = numpy.moveaxis(_as_uint8(values), place, 0)
    return pixels if image_size is None else _resized(pixels, image_size)


def label_of(label: object) -> int:
    """A class as a number; raises ``ValueError`` with the reason if it cannot be one."""
    if isinstance(label, Tensor | numpy.ndarray | numpy.generic):
        if math.prod(label.shape) != 1:
            raise ValueError(f"its label must be one number, got an array of shape {tuple(label.shape)}")
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int):
        raise ValueError(f"its label must be an integer, the class counted from 0, got {label!r}")
    if label < 0:
        raise ValueError(f"its label must be the class counted from 0, got {label}")
    return label


def _read(dataset: MapDataset, index: int, name: str, image_size: int | None, columns: Columns) -> tuple[Pixels, int]:
    sample = dataset[index]
    try:
        image, label = _parts(sample, columns)
        return pixels_of(image, image_size), label_of(label)
    except ValueError as error:
        raise ConfigurationError(f"cannot use {name}[{index}]: {error}") from error


def _parts(sample: object, columns: Columns) -> tuple[object, object]:
    if isinstance(sample, Mapping):
        found = [[sample[key] for key in keys if key in sample] for keys in columns]
        if not all(found):
            raise ValueError(
                f"a row must have a column {' or '.join(columns[0])} and a column {' or '.join(columns[1])}, got "
                f"{', '.join(map(str, sample))}: name them by image= and label="
            )
        return found[0][0], found[1][0]
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        number = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        raise ValueError(f"a sample must be (image, label), got {type(sample).__name__}{number}")
    return sample[0], sample[1]


def _as_uint8(values: NDArray[Any]) -> Pixels:
    """Values of a tensor or array; floats k/255, which torchvision's ``ToTensor`` makes, are exact."""
    if values.dtype == numpy.uint8:
        return values
    if not values.size or values.dtype.kind not in "fiu":
        raise ValueError(f"its image must have uint8 values, got {values.dtype} of shape {values.shape}")
    low, high = values.min(), values.max()
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        scaled = 255.0 * values
        pixels = scaled.round()
        if numpy.abs(scaled - pixels).max() < TOLERANCE:
            return pixels.astype(numpy.uint8)
    is_raw = low >= 0 and high <= 255 and high > 1
    hint = (
        "convert it to uint8" if is_raw else f"memory holds uint8, {LEFT_TO_THE_SEQUENCE} (mean and std, or transform)"
    )
    raise ValueError(
        f"its image must have uint8 values, or floats k/255 as ToTensor makes them, got {values.dtype} in "
        f"[{low:.4g}, {high:.4g}]: {hint}"
    )


def _resized(pixels: Pixels, image_size: int) -> Pixels:
    if len(pixels) not in (1, 3):
        raise ValueError(f"image_size resizes grey and RGB images, got {len(pixels)} channels")
    image = Image.fromarray(numpy.ascontiguousarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)))
    return pixels_of(image, image_size)


def _check_map_style(dataset: object, name: str) -> None:
    is_mapping = isinstance(dataset, Mapping)  # such as Hugging Face's DatasetDict
    if is_mapping or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        hint = f": choose one of {', '.join(map(str, dataset))}" if isinstance(dataset, Mapping) else ""
        raise ConfigurationError(
            f"{name} must be a dataset with a length and samples by number, got {type(dataset).__name__}{hint}"
        )
    if not len(dataset):
        raise ConfigurationError(f"{name} must have samples, got none")


def _check_channels(values: NDArray[Any], place: int) -> None:
    other = -1 - place
    is_other_way = values.ndim == 3 and values.shape[place] not in LIKELY_CHANNELS
    if values.ndim != 3 or (is_other_way and values.shape[other] in LIKELY_CHANNELS):
        expected = "a tensor (channels, height, width)" if place == 0 else "an array (height, width, channels)"
        raise ValueError(f"its image must be {expected}, got the shape {values.shape}")


def _check_shape(pixels: Pixels, shape: tuple[int, ...], where: str, first: str) -> None:
    if pixels.shape[1:] != shape[1:]:
        raise ConfigurationError(
            f"all images must have one size, but {where} is {pixels.shape[2]}x{pixels.shape[1]} and {first} is "
            f"{shape[2]}x{shape[1]}: give an image_size to resize them to"
        )
    if len(pixels) not in (1, shape[0]):
        raise ConfigurationError(f"all images must have {shape[0]} channels, as {first}, but {where} has {len(pixels)}")


def _check_unchanged(before: Pixels, now: Pixels, where: str) -> None:
    if before.shape[1:] != now.shape[1:] or (before != now).any():
        raise ConfigurationError(
            f"{where} changes from one reading to the next, so its transform is random: a sample is read only once, "
            f"{LEFT_TO_THE_SEQUENCE} (padding and flip, or transform)"
        )
