"""Which classes form each task: how many, and in which order."""

from collections.abc import Sequence
from typing import Literal

import numpy
import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError, check_positive

NamedOrder = Literal["pycil-1993"]
NUMPY_SEEDS = {"pycil-1993": 1993}  # of the permutation that PyCIL and others publish: 68, 56, 78, ... for CIFAR-100


def ordered_classes(num_classes: int, order: Sequence[int] | NamedOrder | None, seed: int | None) -> Tensor:
    """All classes in the order in which they come.

    Args:
        num_classes: Number of classes.
        order: The classes, or the name of a published order.
        seed: Seed of a random order; without either, the order of the labels.

    >>> ordered_classes(100, "pycil-1993", None)[:3]
    tensor([68, 56, 78])
    """
    if order is None:
        if seed is None:
            return torch.arange(num_classes)
        return torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    if seed is not None:
        raise ConfigurationError(f"class_order_seed must be left out with class_order, got {seed}")
    if isinstance(order, str):
        if order not in NUMPY_SEEDS:
            raise ConfigurationError(f"class_order must be classes or one of {', '.join(NUMPY_SEEDS)}, got {order!r}")
        legacy = numpy.random.RandomState(NUMPY_SEEDS[order])  # legacy, as the published order
        return torch.from_numpy(legacy.permutation(num_classes)).long()
    if sorted(order) != list(range(num_classes)):
        raise ConfigurationError(
            f"class_order must have each class from 0 to {num_classes - 1} once, got {list(order)}"
        )
    return torch.tensor(list(order))


def classes_per_task(num_classes: int, num_tasks: int, sizes: Sequence[int] | None, data: str) -> list[int]:
    """Number of classes of each task: the given ones, or equally many.

    Args:
        num_classes: Number of classes.
        num_tasks: Number of tasks, if no sizes are given.
        sizes: Number of classes of each task.
        data: Name of the data, for messages.

    >>> classes_per_task(10, 5, None, "digits"), classes_per_task(10, 5, [6, 2, 2], "digits")
    ([2, 2, 2, 2, 2], [6, 2, 2])
    """
    if sizes is None:
        check_positive(num_tasks=num_tasks)
        if num_classes % num_tasks:
            raise ConfigurationError(
                f"num_tasks must divide the {num_classes} classes of {data}, got {num_tasks}: give task_sizes for "
                "tasks of different sizes"
            )
        return [num_classes // num_tasks] * num_tasks
    if not sizes or min(sizes) < 1 or sum(sizes) != num_classes:
        raise ConfigurationError(
            f"task_sizes must be positive and sum to the {num_classes} classes of {data}, got {list(sizes)} "
            f"(sum {sum(sizes)})"
        )
    return list(sizes)


def class_matrix(order: Tensor, sizes: Sequence[int]) -> Tensor:
    """Whether each class is one of each task's (tasks, classes).

    >>> class_matrix(torch.tensor([2, 0, 1]), [1, 2])
    tensor([[False, False,  True],
            [ True,  True, False]])
    """
    tasks = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    is_class_of_task = torch.zeros(len(sizes), len(order), dtype=torch.bool)
    is_class_of_task[tasks, order] = True
    return is_class_of_task
