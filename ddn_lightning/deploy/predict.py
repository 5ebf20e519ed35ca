"""Predict the classes of images from anywhere by a trained method."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ddn_lightning.data.decoding import decode_image, decode_pixels
from ddn_lightning.data.image_tree import images_below
from ddn_lightning.distill.learner import Predicting
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.networks.frozen_features import is_features
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.samples import Samples

Images = Tensor | Image.Image | str | Path | Sequence[Any]


@dataclass(frozen=True)
class Predictions:
    """What a method says of images.

    Args:
        probabilities: Probability of each class (number of images, classes), on the host.
        class_names: Name of each class.
        files: Where the images came from, if from files.

    Example:
        >>> found = Predictions(torch.tensor([[0.2, 0.8]]), ("cat", "dog"))
        >>> found.names, list(found)
        (['dog'], [('dog', 0.800000011920929)])
    """

    probabilities: Tensor
    class_names: tuple[str, ...]
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.probabilities)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """The most probable class of each image, with its probability."""
        values, labels = self.probabilities.max(dim=1)
        return ((self.class_names[label], value) for label, value in zip(labels.tolist(), values.tolist(), strict=True))

    @property
    def labels(self) -> Tensor:
        """The most probable class of each image, as a number."""
        return self.probabilities.argmax(dim=1)

    @property
    def names(self) -> list[str]:
        """The most probable class of each image, by name."""
        return [name for name, _ in self]

    def top(self, number: int) -> list[list[tuple[str, float]]]:
        """The most probable classes of each image, the best first."""
        values, labels = self.probabilities.topk(min(number, len(self.class_names)), dim=1)
        return [
            [(self.class_names[label], value) for label, value in zip(row, best, strict=True)]
            for row, best in zip(labels.tolist(), values.tolist(), strict=True)
        ]


def predict(method: Predicting, images: Images, batch_size: int = 256) -> Predictions:
    """Class names and probabilities for images from anywhere.

    Args:
        method: A trained method.
        images: Raw ``uint8`` images (number, channels, height, width), a PIL image, an image file, a folder with
            image files in it or in its folders, or a list of these.
        batch_size: Images per forward pass.
    """
    check_positive(batch_size=batch_size)
    raw, files = raw_images(images, trained_shape(method, "predict"))
    with evaluating(method):
        found = [method.probabilities(part) for part in torch.split(raw, batch_size) if len(part)]
    empty = torch.empty(0, method.num_classes)
    return Predictions(torch.cat([one.cpu() for one in found] or [empty]), method.label_names, files)


def trained_shape(method: Predicting, action: str) -> tuple[int, ...]:
    """The shape (channels, height, width) of the images that a method was trained on; refuse an untrained one."""
    if method.image_shape is None or method.transform is None:
        raise ConfigurationError(f"{action} needs a trained method: this one has seen no images")
    return method.image_shape


def raw_batch(batch: Samples | Tensor | Sequence[Tensor]) -> Tensor:
    """The raw images of a batch, alone or with labels; refuse normalised ones."""
    if isinstance(batch, Samples):
        return batch.images
    if not isinstance(batch, Tensor | list | tuple):
        raise ConfigurationError(
            f"a batch must be images or (images, labels), got a {type(batch).__name__}: give the loader a collate_fn, "
            "or make a sequence by TaskSequence.from_datasets(..., image=..., label=...)"
        )
    images = batch if isinstance(batch, Tensor) else batch[0]
    if images.dtype != torch.uint8 and not is_features(images):
        dtype = str(images.dtype).removeprefix("torch.")
        raise ConfigurationError(
            f"a prediction takes raw uint8 images, got {dtype}: call method(images) for logits of normalised images"
        )
    return images


def raw_images(images: Images, image_shape: Sequence[int]) -> tuple[Tensor, tuple[str, ...]]:
    """Images of any kind as ``uint8`` (number, channels, height, width), and their files if they have any.

    Files and PIL images are turned upright, put on white where they are transparent and resized, as those of
    :class:`SplitImageFolder` are.

    Args:
        images: A tensor of one image or of several, a PIL image, a file, a folder with files in it or
            in its folders, or a list of these.
        image_shape: Channels, height and width that the method was trained on.
    """
    if isinstance(images, str | Path):
        path = Path(os.path.expanduser(images))
        files = images_below(str(path)) if path.is_dir() else [str(path)]
        return torch.stack([_from_file(file, image_shape) for file in files]), tuple(files)
    if isinstance(images, Tensor):
        return _checked(images if images.dim() == 4 else images[None], image_shape), ()
    if isinstance(images, Image.Image):
        return _from_pil(images, image_shape)[None], ()
    if not isinstance(images, Iterable) or hasattr(images, "__array__"):  # numpy's
        raise ConfigurationError(
            "images must be a uint8 tensor, a PIL image, a file, a folder, or a list of these, got "
            f"{type(images).__name__}"
        )
    parts = [raw_images(one, image_shape) for one in images]
    if not parts:
        return torch.empty(0, *image_shape, dtype=torch.uint8), ()
    return torch.cat([part for part, _ in parts]), tuple(file for _, files in parts for file in files)


def _checked(images: Tensor, image_shape: Sequence[int]) -> Tensor:
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != tuple(image_shape):
        found = f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}"
        shape = ", ".join(map(str, image_shape))
        raise ConfigurationError(f"images must be uint8 of shape (number, {shape}), not normalised, got {found}")
    return images


def _from_file(path: str, image_shape: Sequence[int]) -> Tensor:
    return _as_tensor(decode_image(path, _side(image_shape)).pixels, image_shape)


def _from_pil(image: Image.Image, image_shape: Sequence[int]) -> Tensor:
    return _as_tensor(decode_pixels(image, _side(image_shape)).pixels, image_shape)


def _side(image_shape: Sequence[int]) -> int:
    _, height, width = image_shape
    if height != width:
        raise ConfigurationError(f"images must be given as a tensor of {height}x{width} pixels: others are made square")
    return height


def _as_tensor(pixels: Any, image_shape: Sequence[int]) -> Tensor:
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    if image_shape[0] == 1:  # a method of grey images: luma as PIL's mode L has it
        grey = (image.float() * torch.tensor([299.0, 587.0, 114.0]).view(3, 1, 1)).sum(dim=0, keepdim=True) / 1000
        return grey.round().to(torch.uint8)
    return image
