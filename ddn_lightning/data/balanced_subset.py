"""A fixed, class-balanced choice of samples."""

import torch
from torch import Tensor

from ddn_lightning.data.plan import random_rank
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.random_streams import generator_for


def balanced_subset(labels: Tensor, tasks: Tensor, images: int, seed: int) -> Tensor:
    """Indices of at most ``images`` random samples, equally many of each class in each task, by task.

    A class with fewer samples than its share gives all that it has.

    Args:
        labels: Class of each sample.
        tasks: Task of each sample.
        images: Maximum number of indices.
        seed: Seed of the choice.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
        >>> tasks = torch.tensor([1, 1, 1, 0, 0, 0, 0, 1, 1])
        >>> labels[balanced_subset(labels, tasks, images=7, seed=0)]
        tensor([1, 1, 0, 0, 2, 2])
    """
    _, groups = torch.unique(tasks * (int(labels.max()) + 1) + labels, return_inverse=True)
    number = int(groups.max()) + 1
    if images < number:
        raise ConfigurationError(f"images must be at least {number}, one of each class in each task, got {images}")
    is_chosen = random_rank(groups, generator_for(seed, "balanced subset")) < images // number
    chosen = is_chosen.nonzero().squeeze(1)
    return chosen[groups[chosen].argsort(stable=True)]


def images_of_each_task(labels: Tensor, tasks: Tensor, number: int) -> Tensor:
    """Indices of at most ``number`` random samples of each task, equally many of each of its classes, by task.

    The choice is always the same.
    """
    places = [(tasks == task).nonzero().squeeze(1) for task in torch.unique(tasks)]
    return torch.cat([of[balanced_subset(labels[of], torch.zeros_like(of), number, seed=0)] for of in places])
