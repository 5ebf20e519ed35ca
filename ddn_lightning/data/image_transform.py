"""Batch augmentation on the device: a random crop and flip per image, then normalisation."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.construction import Constructed
from ddn_lightning.distributed import local_share, moved
from ddn_lightning.errors import ConfigurationError, check_positive


class ImageTransform(Constructed):
    """Turns raw ``uint8`` images into normalised floats, with a random crop and flip per image when training.

    With a generator it augments: pads with black, crops each image at a random position back to its size, and mirrors
    it with probability 0.5. Without a generator it only normalises.

    Args:
        mean: Mean of each channel, of pixel values in [0, 1].
        std: Standard deviation of each channel.
        padding: Black border around the image before the crop; 0 for no crop.
        flip: Whether images may be mirrored.

    Example:
        >>> transform = ImageTransform(mean=(0.5,), std=(0.5,))
        >>> transform(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
        tensor([[[[-1.0000,  1.0000]]]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], padding: int = 0, flip: bool = False) -> None:
        _check_statistics(mean, std)
        self.padding = padding
        self.flip = flip
        # one multiply-add instead of three steps: (x / 255 - mean) / std = x * scale + shift
        self.scale = (1 / (255 * torch.tensor(std))).view(-1, 1, 1)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1)

    def __call__(
        self, images: Tensor, generator: torch.Generator | None = None, global_size: int | None = None
    ) -> Tensor:
        """Normalise, and augment if a generator is given.

        Args:
            images: Raw images (batch, channels, height, width), this rank's share.
            generator: Generator of the crops and flips, on the CPU.
            global_size: Batch size over all ranks: random numbers are drawn for the global batch.
        """
        if generator is not None and (self.padding or self.flip):
            images = self._crop_and_flip(images, generator, global_size or len(images))
        self._move_to(images.device)
        return torch.addcmul(self.shift, images.float(), self.scale)

    def undo(self, images: Tensor) -> Tensor:
        """Normalised images back to the nearest ``uint8`` images."""
        self._move_to(images.device)
        return ((images - self.shift) / self.scale).round().clamp(0, 255).to(torch.uint8)

    def _move_to(self, device: torch.device) -> None:
        if self.scale.device != device:
            self.scale, self.shift = moved(self.scale, device), moved(self.shift, device)

    def _crop_and_flip(self, images: Tensor, generator: torch.Generator, global_size: int) -> Tensor:
        height, width = images.shape[-2:]
        corners = local_share(torch.randint(2 * self.padding + 1, (2, global_size), generator=generator).T)
        mirrored = local_share(torch.rand(global_size, generator=generator) < (0.5 if self.flip else 0.0))
        # three numbers an image go to the device, which makes the indices of pixels from them
        drawn = moved(torch.cat([corners, mirrored[:, None]], dim=1), images.device)
        top, left, is_mirrored = drawn[:, :, None].unbind(1)  # (batch, 1) each
        rows = top + torch.arange(height, device=images.device)  # (batch, height)
        columns = torch.arange(width, device=images.device)
        columns = left + torch.where(is_mirrored.bool(), columns.flip(0), columns)  # (batch, width)

        padded = functional.pad(images, [self.padding] * 4)
        pixels = rows[:, :, None] * padded.shape[-1] + columns[:, None, :]  # (batch, height, width)
        chosen = pixels.flatten(1)[:, None].expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, chosen).view_as(images)


def _check_statistics(mean: Sequence[float], std: Sequence[float]) -> None:
    if len(mean) != len(std) or not mean:
        raise ConfigurationError(
            f"mean and std must have a number for each channel, got {len(mean)} and {len(std)} numbers"
        )
    check_positive(std=min(std))
    for name, values in (("mean", mean), ("std", std)):
        if not all(math.isfinite(value) and 0 <= value <= 1 for value in values):
            hint = ": divide by 255" if all(0 <= value <= 255 for value in values) else ""
            raise ConfigurationError(f"{name} must be of pixel values in [0, 1], got {list(values)}{hint}")
