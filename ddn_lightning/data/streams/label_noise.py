"""Label noise: a share of the training labels is wrong."""

from dataclasses import replace
from typing import Literal

import torch

from ddn_lightning.data.plan import Plan, random_rank
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import ConfigurationError, check_fraction


class LabelNoise(Stream):
    """Wrong labels in the training data (as Kim et al., ICCV 2021, https://arxiv.org/abs/2110.07735).

    A wrong label is another class of the same task: classes that have not come yet are unknown to whoever labels. The
    right labels never reach training; test labels are right.

    Args:
        share: Share of each class's samples with a wrong label.
        kind: ``symmetric``, any other class of the task; ``asymmetric``, always the next class of the task, as if two
            classes were confused.
    """

    def __init__(self, share: float = 0.2, kind: Literal["symmetric", "asymmetric"] = "symmetric") -> None:
        check_fraction(share=share)
        self.share = share
        self.kind = kind

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Replace a random share of the labels of each class."""
        is_class = plan.is_class_of_task
        sizes = is_class.sum(dim=1)  # classes of each task
        if int(sizes.min()) < 2:
            raise ConfigurationError(
                f"LabelNoise needs two classes in every task, but task {int(sizes.argmin()) + 1} has one"
            )
        wrong = (plan.labels.bincount(minlength=is_class.shape[1]).double() * self.share).round()
        is_wrong = random_rank(plan.labels, generator) < wrong[plan.labels]
        chance = torch.rand(len(plan), generator=generator, dtype=torch.float64)
        most = sizes[plan.tasks] - 1
        step = 1 + (chance * most).long() if self.kind == "symmetric" else torch.ones_like(most)
        classes = is_class.int().argsort(dim=1, descending=True, stable=True)  # those of the task first, ascending
        place = is_class.cumsum(dim=1)[plan.tasks, plan.labels] - 1
        others = classes[plan.tasks, (place + step) % sizes[plan.tasks]]
        return replace(plan, labels=torch.where(is_wrong, others, plan.labels))
