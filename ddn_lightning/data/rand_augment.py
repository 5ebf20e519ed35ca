"""RandAugment on the device: the same operations as torchvision's, but another one for each image of a batch."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from ddn_lightning.construction import Constructed
from ddn_lightning.distributed import local_share, moved
from ddn_lightning.errors import ConfigurationError, check_positive

HIGHEST = 30  # magnitude, as in torchvision, which has 31 levels
MOST_SHIFT = 150 / 331  # of the image's size, as in torchvision


def _sheared(images: Tensor, along_width: float, along_height: float) -> Tensor:
    angles = [math.degrees(math.atan(0.3 * part)) for part in (along_width, along_height)]
    sheared: Tensor = functional.affine(images, angle=0.0, translate=[0, 0], scale=1.0, shear=angles, center=[0.0, 0.0])
    return sheared


def _shifted(images: Tensor, along_width: float, along_height: float) -> Tensor:
    height, width = images.shape[-2:]
    pixels = [int(MOST_SHIFT * width * along_width), int(MOST_SHIFT * height * along_height)]
    shifted: Tensor = functional.affine(images, angle=0.0, translate=pixels, scale=1.0, shear=[0.0, 0.0])
    return shifted


# from images and a strength from -1 to 1, whose sign has no meaning for the last five, to images
OPERATIONS: tuple[Callable[[Tensor, float], Tensor], ...] = (
    lambda images, strength: _sheared(images, strength, 0.0),
    lambda images, strength: _sheared(images, 0.0, strength),
    lambda images, strength: _shifted(images, strength, 0.0),
    lambda images, strength: _shifted(images, 0.0, strength),
    lambda images, strength: functional.rotate(images, 30 * strength),
    lambda images, strength: functional.adjust_brightness(images, 1 + 0.9 * strength),
    lambda images, strength: functional.adjust_saturation(images, 1 + 0.9 * strength),
    lambda images, strength: functional.adjust_contrast(images, 1 + 0.9 * strength),
    lambda images, strength: functional.adjust_sharpness(images, 1 + 0.9 * strength),
    lambda images, strength: functional.posterize(images, round(8 - 4 * abs(strength))),
    lambda images, strength: functional.solarize(images, 255 * (1 - abs(strength))),
    lambda images, _: functional.autocontrast(images),
    lambda images, _: functional.equalize(images),
    lambda images, _: images,
)


class RandAugment(Constructed):
    """Applies random operations of one strength to each image (Cubuk et al. 2020, https://arxiv.org/abs/1909.13719).

    The operations are those of ``torchvision.transforms.RandAugment``: shear, shift, rotation, brightness, saturation,
    contrast, sharpness, posterization, solarization, contrast stretching, equalization, and none. Images with the same
    operation are changed together, on their device.

    Args:
        operations: Operations in sequence on each image.
        magnitude: Their strength, from 0 to 30.

    Example:
        >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> RandAugment(operations=1)(images, torch.Generator()).shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(self, operations: int = 2, magnitude: int = 9) -> None:
        check_positive(operations=operations)
        if not 0 <= magnitude <= HIGHEST:
            raise ConfigurationError(f"magnitude must be from 0 to {HIGHEST}, got {magnitude}")
        self.operations = operations
        self.magnitude = magnitude

    def __call__(self, images: Tensor, generator: torch.Generator, global_size: int | None = None) -> Tensor:
        """The augmented images.

        Args:
            images: Raw ``uint8`` images (batch, channels, height, width), this rank's share.
            generator: Generator of the operations, on the CPU.
            global_size: Batch size over all ranks: random numbers are drawn for the global batch.
        """
        if (channels := images.shape[1]) not in (1, 3):
            raise ConfigurationError(f"RandAugment needs images with 1 or 3 channels, got {channels}")
        size = (self.operations, global_size or len(images))
        for drawn in torch.randint(2 * len(OPERATIONS), size, generator=generator):  # each with both signs
            images = self._changed(images, local_share(drawn))
        return images

    def _changed(self, images: Tensor, chosen: Tensor) -> Tensor:
        changed = images.clone()
        for number in sorted(set(chosen.tolist())):  # on the host
            rows = moved((chosen == number).nonzero().squeeze(1), images.device)
            operation, sign = divmod(number, 2)
            strength = (1 - 2 * sign) * self.magnitude / HIGHEST
            changed[rows] = OPERATIONS[operation](images[rows], strength)
        return changed
