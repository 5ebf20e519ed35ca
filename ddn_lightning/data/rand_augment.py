"""RandAugment on the device: the same operations as torchvision's, but another one for each image of a batch."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample
from torchvision.transforms.v2 import functional

from ddn_lightning.checkpoint.construction import Constructed
from ddn_lightning.distributed import local_share, moved
from ddn_lightning.errors import ConfigurationError, check_positive

HIGHEST = 30  # magnitude, as in torchvision, which has 31 levels
MOST_SHIFT = 150 / 331  # of the image's size, as in torchvision
GEOMETRIC = 5  # operations that move pixels: two shears, two shifts and a rotation
# those that change colours, from images and a strength from -1 to 1, whose sign has no meaning for the last five
COLOURS: tuple[Callable[[Tensor, float], Tensor], ...] = (
    lambda images, strength: functional.adjust_brightness(images, 1 + 0.9 * strength),
    lambda images, strength: functional.adjust_saturation(images, 1 + 0.9 * strength),
    lambda images, strength: functional.adjust_contrast(images, 1 + 0.9 * strength),
    lambda images, strength: _sharpened(images, 1 + 0.9 * strength),
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
    operation are changed together, on their device; torchvision's own geometry would make the host wait for it.

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
        number = 2 * (GEOMETRIC + len(COLOURS))  # each with both signs
        for drawn in torch.randint(number, size, generator=generator):
            images = self._changed(images, local_share(drawn))
        return images

    def _changed(self, images: Tensor, chosen: Tensor) -> Tensor:
        changed, strength = images.clone(), self.magnitude / HIGHEST
        is_moved = chosen < 2 * GEOMETRIC
        maps = _origins(strength, *images.shape[-2:])[chosen[is_moved]]
        rows = moved(is_moved.nonzero().squeeze(1), images.device)
        changed[rows] = _sampled(images[rows], moved(maps, images.device))
        for number in sorted(set(chosen[~is_moved].tolist())):  # on the host
            operation, sign = divmod(number - 2 * GEOMETRIC, 2)
            rows = moved((chosen == number).nonzero().squeeze(1), images.device)
            changed[rows] = COLOURS[operation](images[rows], (1 - 2 * sign) * strength)
        return changed


def _origins(strength: float, height: int, width: int) -> Tensor:
    """Where a pixel comes from, for each geometric operation with both signs (10, 2, 3), from the image's centre."""
    maps = []
    for signed in (strength, -strength):
        slope, turn = 0.3 * signed, math.radians(30 * signed)
        along_width, along_height = int(MOST_SHIFT * width * signed), int(MOST_SHIFT * height * signed)
        maps.append(
            [
                [[1, slope, slope * height / 2], [0, 1, 0]],
                [[1, 0, 0], [slope, 1, slope * width / 2]],
                [[1, 0, -along_width], [0, 1, 0]],
                [[1, 0, 0], [0, 1, -along_height]],
                [[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0]],
            ]
        )
    return torch.tensor(maps, dtype=torch.float32).transpose(0, 1).flatten(0, 1)


def _sampled(images: Tensor, origins: Tensor) -> Tensor:
    """The nearest pixels at the origins, black where there are none."""
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device, dtype=torch.float32) + 0.5 - height / 2
    columns = torch.arange(width, device=images.device, dtype=torch.float32) + 0.5 - width / 2
    places = torch.stack(
        [columns.expand(height, -1), rows[:, None].expand(-1, width), torch.ones_like(columns).expand(height, -1)]
    )
    found = torch.einsum("nij,jhw->nhwi", origins, places)  # (batch, height, width, 2)
    grid = torch.stack([found[..., 0] / (width / 2), found[..., 1] / (height / 2)], dim=3)
    return grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(images.dtype)


def _sharpened(images: Tensor, factor: float) -> Tensor:
    """Images away from, or for a factor below 1 towards, a blurred copy; the border stays."""
    if min(images.shape[-2:]) < 3:
        return images
    inner = images[..., 1:-1, 1:-1].float()
    blurred = ((9 * avg_pool2d(images.float(), 3, stride=1) + 4 * inner) / 13).round()
    changed = images.clone()
    changed[..., 1:-1, 1:-1] = (blurred + factor * (inner - blurred)).clamp(0, 255).to(images.dtype)
    return changed
