"""Distribution matching: synthetic images whose features have the mean of the real ones', on random networks.

After DM (Zhao and Bilen, WACV 2023, https://arxiv.org/abs/2110.04181).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.devices import moved

BLOCKS = 3


def random_network(generator: torch.Generator, images: Tensor, width: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of a ConvNet, drawn as torch does: a block for each halving that the images allow."""
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
    """Features (batch, dim) by convolutions, each with instance normalisation, ReLU and average pooling."""
    for weight, bias in network:
        images = functional.conv2d(images, weight, bias, padding=1)
        images = functional.avg_pool2d(functional.relu(functional.instance_norm(images)), 2)
    return images.flatten(1)


def matching_loss(real: Tensor, real_labels: Tensor, synthetic: Tensor, synthetic_labels: Tensor) -> Tensor:
    """Squared distance between the mean features of real and synthetic samples, summed over the classes in both.

    Labels are best given on the host: how many classes there are is a question that a device would be waited for with.

    >>> features, labels = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1])
    >>> matching_loss(features, labels, torch.tensor([[4.0]]), torch.tensor([0]))
    tensor(9.)
    """
    classes = torch.unique(torch.cat([real_labels, synthetic_labels]))
    means, is_there = [], torch.ones(len(classes), dtype=torch.bool, device=real.device)
    for features, labels in ((real, real_labels), (synthetic, synthetic_labels)):
        membership = moved((labels == classes[:, None]).to(features.dtype), features.device)  # (classes, samples)
        counts = membership.sum(dim=1)
        means.append(membership @ features / counts.clamp_min(1)[:, None])
        is_there = is_there & (counts > 0)
    distances: Tensor = (means[0] - means[1]).square().sum(dim=1)
    return (distances * is_there).sum()
