"""Distribution matching: learn images whose mean features match those of real ones, under the same augmentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.distributed import moved

BLOCKS = 3
Kind = Literal["colour", "crop", "cutout", "flip", "scale", "rotate"]
SHIFT, HOLE, ZOOM, ANGLE = 0.125, 0.5, 1.2, pi / 12  # of DSA: fractions of the image size, a factor, 15 degrees


def random_network(generator: torch.Generator, images: Tensor, width: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of a ConvNet, initialised as by torch; up to three blocks, as the image size allows."""
    blocks = min(BLOCKS, int(min(images.shape[-2:])).bit_length() - 1)
    layers, channels = [], images.shape[1]
    for _ in range(blocks):
        bound = (9 * channels) ** -0.5
        weight, bias = torch.empty(width, channels, 3, 3), torch.empty(width)
        for drawn in (weight, bias):
            drawn.uniform_(-bound, bound, generator=generator)
        layers.append((moved(weight.to(images.dtype), images.device), moved(bias.to(images.dtype), images.device)))
        channels = width
    return layers


def random_features(images: Tensor, network: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Features (batch, dim) of convolutions with instance normalisation, ReLU and average pooling."""
    for weight, bias in network:
        images = functional.conv2d(images, weight, bias, padding=1)
        images = functional.avg_pool2d(functional.relu(functional.instance_norm(images)), 2)
    return images.flatten(1)


def matching_loss(real: Tensor, real_labels: Tensor, synthetic: Tensor, synthetic_labels: Tensor) -> Tensor:
    """Squared distance between the mean features of real and synthetic samples, summed over the classes in both.

    Labels should be on the host: finding the classes would synchronise a device.

    >>> features, labels = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1])
    >>> matching_loss(features, labels, torch.tensor([[4.0]]), torch.tensor([0]))
    tensor(9.)
    """
    classes = torch.unique(torch.cat([real_labels, synthetic_labels]))
    means, is_common = [], torch.ones(len(classes), dtype=torch.bool, device=real.device)
    for features, labels in ((real, real_labels), (synthetic, synthetic_labels)):
        membership = moved((labels == classes[:, None]).to(features.dtype), features.device)  # (classes, samples)
        counts = membership.sum(dim=1)
        means.append(membership @ features / counts.clamp_min(1)[:, None])
        is_common = is_common & (counts > 0)
    distances: Tensor = (means[0] - means[1]).square().sum(dim=1)
    return (distances * is_common).sum()


@dataclass(frozen=True)
class SiameseAugmentation:
    """Differentiable siamese augmentation (Zhao and Bilen, ICML 2021, https://arxiv.org/abs/2102.08259).

    Applies the same transform to real and synthetic images, so that features are matched and not the augmentation.

    Args:
        kind: The transform.
        amounts: Three parameters in [0, 1).
    """

    kind: Kind
    amounts: tuple[float, float, float]

    @classmethod
    def draw(cls, generator: torch.Generator) -> "SiameseAugmentation":
        """Draw a random transform."""
        kinds = get_args(Kind)
        kind = kinds[int(torch.randint(len(kinds), (), generator=generator))]
        first, second, third = torch.rand(3, generator=generator).tolist()
        return cls(kind, (first, second, third))

    def __call__(self, images: Tensor) -> Tensor:
        """The transformed images, in the same shape."""
        if self.kind == "colour":
            return self._recolour(images)
        if self.kind == "cutout":
            return self._cut_out(images)
        theta = moved(torch.tensor(self._theta(), dtype=images.dtype), images.device)
        grid = functional.affine_grid(theta.expand(len(images), 2, 3), list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)

    def _theta(self) -> list[list[float]]:
        """The affine map from output to input coordinates, both in -1 to 1."""
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
        """A square of zeros, which may extend over the edge."""
        height, width = images.shape[-2:]
        rows = (torch.arange(height, device=images.device) / height - self.amounts[0]).abs() < HOLE / 2
        columns = (torch.arange(width, device=images.device) / width - self.amounts[1]).abs() < HOLE / 2
        return images.masked_fill(rows[:, None] & columns, 0)
