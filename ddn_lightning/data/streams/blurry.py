"""Blurry tasks: some samples come before or after the task of their class."""

from dataclasses import replace

import torch

from ddn_lightning.data.plan import Plan, random_rank
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import check_fraction


class Blurry(Stream):
    """Overlapping tasks, as i-Blurry (Koh et al., ICLR 2022, https://arxiv.org/abs/2110.10031).

    A share of the classes, chosen at random, is *disjoint*: all their samples come in one task. Of the other classes, a
    share of the samples is spread evenly over the other tasks. A class is measured in its own task.

    Args:
        disjoint: Share of disjoint classes.
        blur: Share of a blurry class's samples that come in other tasks.
    """

    has_disjoint_classes = False
    tells_boundaries = False

    def __init__(self, disjoint: float = 0.5, blur: float = 0.1) -> None:
        check_fraction(disjoint=disjoint, blur=blur)
        self.disjoint = disjoint
        self.blur = blur

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Move a random share of each blurry class to other tasks."""
        num_tasks, num_classes = plan.is_class_of_task.shape
        if num_tasks == 1:
            return plan
        number = round(self.disjoint * num_classes)
        moved = (plan.labels.bincount(minlength=num_classes).double() * self.blur).round()
        moved[torch.randperm(num_classes, generator=generator)[:number]] = 0
        rank = random_rank(plan.labels, generator)
        away = (plan.tasks + 1 + rank % (num_tasks - 1)) % num_tasks
        return replace(plan, tasks=torch.where(rank < moved[plan.labels], away, plan.tasks))
