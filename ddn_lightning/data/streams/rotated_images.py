"""Rotated images: every domain at another angle."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.data.streams.domain_stream import DomainStream
from ddn_lightning.errors import check_finite


class RotatedImages(DomainStream):
    """Domains at growing angles, as Rotated MNIST (Lopez-Paz and Ranzato 2017, https://arxiv.org/abs/1706.08840).

    Args:
        degrees: Angle of the last domain; the first is upright, and the others are evenly spaced between.
    """

    is_spaced = True

    def __init__(self, degrees: float = 180.0) -> None:
        check_finite(degrees=degrees)
        self.degrees = degrees

    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """Rotate about the centre, with black corners."""
        angle = math.radians(self.degrees * task / max(num_tasks - 1, 1))
        height, width = images.shape[-2:]
        cosine, sine, ratio = math.cos(angle), math.sin(angle), height / width
        matrix = torch.tensor([[cosine, -sine * ratio, 0.0], [sine / ratio, cosine, 0.0]])
        size = [len(images), *images.shape[1:]]
        grid = functional.affine_grid(matrix.expand(len(images), -1, -1), size, align_corners=False)
        return functional.grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)
