"""Few-shot tasks: after the first tasks, only a few samples of each class."""

import torch

from ddn_lightning.data.plan import Plan, random_rank
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import check_positive


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
