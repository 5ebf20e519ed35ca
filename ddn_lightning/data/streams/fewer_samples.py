"""Streams with fewer samples of some classes."""

from typing import Literal

import torch

from ddn_lightning.data.plan import Plan, random_rank
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import ConfigurationError, check_finite, check_positive


class FewShot(Stream):
    """A few samples per class in later tasks (Tao et al., CVPR 2020, https://arxiv.org/abs/2004.10956).

    Usually with a large first task: ``task_sizes: [60, 5, 5, ...]``. Tasks may become smaller than a batch, which needs
    ``drop_last: false``.

    Args:
        shots: Samples per class and task.
        from_task: First task with few samples, counted from 1, also where the sequence follows another.
    """

    def __init__(self, shots: int = 5, from_task: int = 2) -> None:
        check_positive(shots=shots, from_task=from_task)
        self.shots = shots
        self.from_task = from_task

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Keep some random samples of each class in the later tasks."""
        rank = random_rank(plan.tasks * len(plan.class_order) + plan.labels, generator)
        is_early = plan.tasks_before + plan.tasks + 1 < self.from_task
        return plan[((rank < self.shots) | is_early).nonzero().squeeze(1)]


class LongTail(Stream):
    """Class sizes fall exponentially (Liu et al., ECCV 2022, https://arxiv.org/abs/2210.00266).

    The k-th of C classes keeps the share ``imbalance ** (-k / (C - 1))`` of its samples, at least one.

    Args:
        imbalance: How many times as many samples the largest class has as the smallest, if the data is balanced.
        order: ``ordered`` from the first class of the sequence to the last, so that tasks become smaller; ``shuffled``
            in random order.
    """

    def __init__(self, imbalance: float = 100.0, order: Literal["ordered", "shuffled"] = "shuffled") -> None:
        check_finite(imbalance=imbalance)
        if imbalance < 1:
            raise ConfigurationError(f"imbalance must be 1 or more, got {imbalance}")
        self.imbalance = imbalance
        self.order = order

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Keep a random share of each class."""
        num_classes = len(plan.class_order)
        order = plan.class_order
        if self.order == "shuffled":
            order = order[torch.randperm(num_classes, generator=generator)]
        shares = self.imbalance ** (-torch.arange(num_classes, dtype=torch.float64) / max(num_classes - 1, 1))
        kept = torch.empty(num_classes, dtype=torch.long)
        kept[order] = (plan.labels.bincount(minlength=num_classes)[order] * shares).round().long().clamp_min(1)
        return plan[(random_rank(plan.labels, generator) < kept[plan.labels]).nonzero().squeeze(1)]
