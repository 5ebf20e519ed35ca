"""The samples of a plan, whose images are looked up when a batch needs them."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from ddn_lightning.data.plan import Plan
from ddn_lightning.samples import LazySamples, Samples

ChangeImages = Callable[[Tensor, int], Tensor]  # raw images of one task -> the task's images


class PlannedSamples(LazySamples):
    """Labels and tasks of a plan; the images are selected, and changed by domain or task, for each batch.

    So a plan may repeat the samples in every task without a copy of the data.
    """

    source: Tensor  # all raw images of the data
    _rows: Tensor
    _domains: Tensor
    _change: ChangeImages | None

    @classmethod
    def of(cls, source: Tensor, plan: Plan, change: ChangeImages | None) -> Self:
        """The samples of a plan over raw images, which ``change`` changes by domain, or by task if there are none."""
        planned = cls.without_images(Samples(plan.labels, plan.labels, tasks=plan.tasks))
        planned.source, planned._rows, planned._change = source, plan.samples, change
        planned._domains = plan.tasks if plan.domains is None else plan.domains
        return planned

    def look_up(self, index: Tensor | slice) -> Samples:
        """Those of the plan, changed."""
        assert self.tasks is not None
        domains, images = self._domains[index], self.source[self._rows[index]]
        if self._change is not None:
            for domain in torch.unique(domains).tolist():
                images[domains == domain] = self._change(images[domains == domain], domain)
        return Samples(images, self.labels[index], tasks=self.tasks[index])
