"""One random change of a whole batch that gradients go through, and that another batch can be given too."""

from dataclasses import dataclass
from math import cos, pi, sin
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.devices import moved

Kind = Literal["colour", "crop", "cutout", "flip", "scale", "rotate"]
SHIFT, HOLE, ZOOM, ANGLE = 0.125, 0.5, 1.2, pi / 12  # of DSA: parts of the image's side, a factor, 15 degrees


@dataclass(frozen=True)
class SiameseAugmentation:
    """Differentiable siamese augmentation (Zhao and Bilen, ICML 2021, https://arxiv.org/abs/2102.08259).

    Real and synthetic images are changed in the same way, so that what is matched is not the change itself.

    Args:
        kind: What is done.
        amounts: Three numbers in [0, 1) that say how.
    """

    kind: Kind
    amounts: tuple[float, float, float]

    @classmethod
    def draw(cls, generator: torch.Generator) -> "SiameseAugmentation":
        """A random one."""
        kinds = get_args(Kind)
        kind = kinds[int(torch.randint(len(kinds), (), generator=generator))]
        first, second, third = torch.rand(3, generator=generator).tolist()
        return cls(kind, (first, second, third))

    def __call__(self, images: Tensor) -> Tensor:
        """The changed images, in the same shape."""
        if self.kind == "colour":
            return self._recolour(images)
        if self.kind == "cutout":
            return self._cut_out(images)
        theta = moved(torch.tensor(self._theta(), dtype=images.dtype), images.device)
        grid = functional.affine_grid(theta.expand(len(images), 2, 3), list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)

    def _theta(self) -> list[list[float]]:
        """The affine map from places in the changed image to places in the original, both from -1 to 1."""
        first, second, _ = self.amounts
        if self.kind == "crop":
            return [[1.0, 0.0, 2 * SHIFT * (2 * first - 1)], [0.0, 1.0, 2 * SHIFT * (2 * second - 1)]]
        if self.kind == "flip":
            return [[-1.0 if first < 0.5 else 1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        if self.kind == "scale":
            return [[1 / ZOOM + first * (ZOOM - 1 / ZOOM), 0.0, 0.0], [0.0, 1 / ZOOM + second * (ZOOM - 1 / ZOOM), 0.0]]
        angle = ANGLE * (2 * first - 1)
        return [[cos(angle), -sin(angle), 0.0], [sin(angle), cos(angle), 0.0]]

    def _recolour(self, images: Tensor) -> Tensor:
        """Brightness, saturation and contrast."""
        first, second, third = self.amounts
        images = images + (first - 0.5)
        grey = images.mean(dim=1, keepdim=True)
        images = (images - grey) * (2 * second) + grey
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        return (images - mean) * (third + 0.5) + mean

    def _cut_out(self, images: Tensor) -> Tensor:
        """A square of zeros, which may reach over the edge."""
        height, width = images.shape[-2:]
        rows = (torch.arange(height, device=images.device) / height - self.amounts[0]).abs() < HOLE / 2
        columns = (torch.arange(width, device=images.device) / width - self.amounts[1]).abs() < HOLE / 2
        return images.masked_fill(rows[:, None] & columns, 0)
