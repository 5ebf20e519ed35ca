"""Streams without boundaries: samples of a class come before and after its task."""

from dataclasses import replace

import torch

from ddn_lightning.data.plan import Plan, random_rank
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import check_fraction, check_not_negative


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


class GaussianDrift(Stream):
    """A task-free stream with a Gaussian schedule (Shanahan et al. 2021, https://arxiv.org/abs/2105.13327).

    The samples of a class come at normally distributed times around the middle of its place in the class order. The
    *tasks* are only stretches of the stream, as long as the tasks would be: at their ends accuracy is measured, and
    what a method does between tasks, such as DDN's snapshot of G, happens there. In a domain-incremental stream, the
    domains drift instead of the classes.

    Args:
        width: Standard deviation of the times of a class, as a share of the whole stream; 0 for one class after the
            other.
    """

    has_disjoint_classes = False
    tells_boundaries = False

    def __init__(self, width: float = 0.1) -> None:
        check_not_negative(width=width)
        self.width = width

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Order the samples by their times, and cut the stream into stretches of the sizes of the tasks."""
        turn = torch.empty_like(plan.class_order)
        turn[plan.class_order] = torch.arange(len(turn))
        is_by_domain = len(plan.is_class_of_task) > 1 and bool(plan.is_class_of_task.all())
        groups = plan.tasks if is_by_domain else turn[plan.labels]
        sizes = groups.bincount()
        middle = (sizes.cumsum(0) - sizes / 2) / len(plan)  # of each group, in an even stream without drift
        spread = torch.randn(len(plan), generator=generator, dtype=torch.float64)
        order = (middle[groups] + self.width * spread).argsort(stable=True)
        return replace(plan[order], tasks=plan.tasks.sort().values, is_ordered=True)
