"""Checks of what a dataset's ``load`` returns: a mistake there would silently train on nonsense."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError

LIKELY_CHANNELS = (1, 3, 4)


def checked(loaded: object, train: bool, num_classes: int, mean: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Check the images and labels that ``load(train)`` returned, and convert the labels to ``int64``."""
    call = f"load(train={train})"
    parts = tuple(loaded) if isinstance(loaded, tuple | list) else (loaded,)
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        found = ", ".join(type(part).__name__ for part in parts)
        raise ConfigurationError(f"{call} must return two tensors, images and labels, got {found}{_conversion(parts)}")
    images, labels = parts
    if any(part.layout != torch.strided for part in parts):
        raise ConfigurationError(f"{call} must return dense tensors, got a sparse one: convert with .to_dense()")
    _check_images(call, images, len(mean))
    return images, _checked_labels(call, labels, len(images), num_classes)


def checked_domains(domains: Tensor, number: int, num_tasks: int) -> Tensor:
    """Check the domains that ``load_tasks`` returned: one of the tasks for each image."""
    if domains.shape != (number,) or not 0 <= int(domains.min()) <= int(domains.max()) < num_tasks:
        raise ConfigurationError(
            f"load_tasks must return a task from 0 to {num_tasks - 1} for each of {number} images, got the shape "
            f"{tuple(domains.shape)} and {int(domains.min())} to {int(domains.max())}"
        )
    return domains.long()


def check_one_size(shape: tuple[int, ...], of_other_split: tuple[int, ...], train: bool) -> None:
    """Refuse training and test images of different sizes."""
    if shape != of_other_split:
        shapes = (shape, of_other_split)[:: 1 if train else -1]
        raise ConfigurationError(
            f"load must return training and test images of one size, got (channels, height, width) = {shapes[0]} "
            f"and {shapes[1]}"
        )


def check_tasks(tasks: Tensor, train: bool, is_class_of_task: Tensor) -> None:
    """Refuse a task without images; ``is_class_of_task`` is (num_tasks, num_classes)."""
    per_task = tasks.bincount(minlength=len(is_class_of_task))
    for task, number in enumerate(per_task.tolist()):
        if number == 0:
            raise ConfigurationError(
                f"load(train={train}) must return images of every task, but has none of task {task + 1}, which is "
                f"classes {is_class_of_task[task].nonzero().flatten().tolist()}"
            )


def _check_images(call: str, images: Tensor, num_channels: int) -> None:
    expected = f"{call} must return uint8 images (number, channels, height, width) with values 0-255"
    if images.dtype != torch.uint8:
        raise ConfigurationError(f"{expected}, got {_described(images)}")
    shape = tuple(images.shape)
    if images.ndim != 4:
        hint = ": add the channel with .unsqueeze(1)" if images.ndim == 3 else ""
        raise ConfigurationError(f"{expected}, got the shape {shape}{hint}")
    if images.shape[1] != num_channels:
        is_channels_last = shape[1] not in LIKELY_CHANNELS and shape[3] in LIKELY_CHANNELS
        hint = ": the channels come last, move them with .permute(0, 3, 1, 2)" if is_channels_last else ""
        raise ConfigurationError(
            f"{expected}, with as many channels as mean and std have numbers, {num_channels}, got the shape "
            f"{shape}{hint}"
        )


def _conversion(parts: Sequence[object]) -> str:
    """How to convert parts that are no tensors."""
    if len(parts) != 2 or any(isinstance(part, str) or not hasattr(part, "__len__") for part in parts):
        return ""
    images = parts[0]
    if isinstance(images, Sequence) and images and all(isinstance(image, Tensor) for image in images):
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1:
            return f": images of several sizes, such as {shapes[0]} and {shapes[-1]}, must be resized to one"
        return ": join the images with torch.stack"
    return ": convert with torch.as_tensor"


def _described(images: Tensor) -> str:
    """Dtype and range of images that are not ``uint8``, and how to convert them."""
    name = str(images.dtype).removeprefix("torch.")
    if not images.numel() or images.is_complex():
        return name
    low, high = float(images.min()), float(images.max())
    if low >= 0 and high <= 1:
        return f"{name} in [0, 1]: convert with .mul(255).round().to(torch.uint8)"
    if low >= 0 and high <= 255:
        return f"{name} in [{low:.4g}, {high:.4g}]: convert with .to(torch.uint8)"
    return f"{name} in [{low:.4g}, {high:.4g}]: return the raw pixels, they are normalised by mean and std later"


def _checked_labels(call: str, labels: Tensor, number: int, num_classes: int) -> Tensor:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ConfigurationError(f"{call} must return labels as int64, got {labels.dtype}: convert with .long()")
    if labels.shape != (number,):
        hint = ": flatten them with .flatten()" if labels.numel() == number else ""
        raise ConfigurationError(
            f"{call} must return one label for each of its {number} images, got the shape {tuple(labels.shape)}{hint}"
        )
    labels = labels.long()
    if number == 0:
        raise ConfigurationError(f"{call} must return at least one image, got none")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        hint = ": they count from 1, subtract 1" if (low, high) == (1, num_classes) else ""
        raise ConfigurationError(
            f"{call} must return labels from 0 to {num_classes - 1}, for num_classes = {num_classes}, got {low} to "
            f"{high}{hint}"
        )
    return labels
