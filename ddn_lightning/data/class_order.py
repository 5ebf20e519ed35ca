"""Which classes form each task: how many, and in which order."""

from collections.abc import Sequence
from typing import Literal

import numpy
import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError, check_positive

NamedOrder = Literal["pycil-1993"]
SEEDS = range(-(2**63), 2**64)  # of a generator
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
        if seed not in SEEDS:
            raise ConfigurationError(f"class_order_seed must be from {SEEDS[0]} to {SEEDS[-1]}, got {seed}")
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


def class_matrix(order: Tensor, tasks: int | Sequence[int], is_by_domain: bool, data: str) -> Tensor:
    """Whether each class is one of each task's (tasks, classes).

    Args:
        order: All classes in the order in which they come.
        tasks: Number of tasks of equal size, or the number of classes of each task.
        is_by_domain: Whether every task has all classes.
        data: Name of the data, for messages.

    >>> class_matrix(torch.tensor([2, 0, 1]), [1, 2], False, "digits")
    tensor([[False, False,  True],
            [ True,  True, False]])
    """
    if isinstance(tasks, int):
        check_positive(num_tasks=tasks)
    elif is_by_domain:
        raise ConfigurationError(f"task_sizes must be left out where every task has all classes, got {list(tasks)}")
    if is_by_domain and isinstance(tasks, int):
        return torch.ones(tasks, len(order), dtype=torch.bool)
    sizes = _sizes(len(order), tasks, data)
    is_class_of_task = torch.zeros(len(sizes), len(order), dtype=torch.bool)
    is_class_of_task[torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), order] = True
    return is_class_of_task


def _sizes(num_classes: int, tasks: int | Sequence[int], data: str) -> list[int]:
    """Number of classes of each task."""
    if isinstance(tasks, int):
        if num_classes % tasks:
            raise ConfigurationError(
                f"num_tasks must divide the {num_classes} classes of {data}, got {tasks}: give task_sizes for tasks of "
                "different sizes"
            )
        return [num_classes // tasks] * tasks
    if not tasks or min(tasks) < 1 or sum(tasks) != num_classes:
        raise ConfigurationError(
            f"task_sizes must be positive and sum to the {num_classes} classes of {data}, got {list(tasks)} (sum "
            f"{sum(tasks)})"
        )
    return list(tasks)
