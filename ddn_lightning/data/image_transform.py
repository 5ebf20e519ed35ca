"""Batch augmentation on the device: a random crop and flip per image, or the user's own, then normalisation."""

import math
import random
from collections.abc import Callable, Sequence

import numpy
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.checkpoint.construction import Constructed
from ddn_lightning.distributed import local_share, moved, rank_and_world_size
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
        augment: Your own augmentation instead of crop and flip, such as one of torchvision's v2 or of Kornia: from
            ``uint8`` images to ``uint8`` ones, or floats in [0, 1]. It may draw from the global random states, which
            are seeded from the generator for it and restored; each device draws for its own share.
        per_image: Whether ``augment`` is called with each image instead of the batch; by default for those of
            torchvision, which would change all images of a batch alike.

    Example:
        >>> transform = ImageTransform(mean=(0.5,), std=(0.5,))
        >>> transform(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
        tensor([[[[-1.0000,  1.0000]]]])
        >>> from torchvision.transforms import v2
        >>> jittering = ImageTransform(mean=(0.5,) * 3, std=(0.5,) * 3, augment=v2.ColorJitter(brightness=0.5))
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        padding: int = 0,
        flip: bool = False,
        augment: nn.Module | Callable[[Tensor], Tensor] | None = None,
        per_image: bool | None = None,
    ) -> None:
        _check_statistics(mean, std)
        if augment is not None and (padding or flip):
            raise ConfigurationError(
                f"augment replaces crop and flip: leave out padding and flip, got padding = {padding}, flip = {flip}"
            )
        self.augment = augment
        self.per_image = type(augment).__module__.startswith("torchvision.") if per_image is None else per_image
        self.constructor_arguments.pop("augment", None)  # a checkpoint's transform normalises: it holds no function
        self.mean, self.std = mean, std
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
        if generator is not None and self.augment is not None:
            images = self._augmented(images, self.augment, generator)
        self._move_to(images.device)
        return torch.addcmul(self.shift, images.float(), self.scale)

    @classmethod
    def of(
        cls, given: "ImageTransform | Callable[[Tensor], Tensor] | None", data: "ImageTransform"
    ) -> "ImageTransform":
        """The transform given; an augmentation with the normalisation of the data's; or the data's."""
        if given is None or isinstance(given, ImageTransform):
            return given or data
        return cls(data.mean, data.std, augment=given)

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

    def _augmented(self, images: Tensor, augment: Callable[[Tensor], Tensor], generator: torch.Generator) -> Tensor:
        """The user's augmentation, with random states that follow from the generator."""
        rank, _ = rank_and_world_size()
        seed = int(torch.randint(2**31, (), generator=generator)) + rank
        with isolate_rng(include_cuda=images.is_cuda):
            random.seed(seed)
            numpy.random.seed(seed)  # noqa: NPY002  # the state that an augmentation may draw from
            torch.default_generator.manual_seed(seed)
            if images.is_cuda:
                torch.cuda.manual_seed(seed)
            found = torch.stack([augment(image) for image in images]) if self.per_image else augment(images)
        if not isinstance(found, Tensor) or found.shape != images.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigurationError(f"augment must give images of shape {tuple(images.shape)}, got {shape}")
        return 255 * found if found.is_floating_point() else found


Given = ImageTransform | nn.Module | Callable[[Tensor], Tensor] | None  # an augmentation alone, or the data's


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
