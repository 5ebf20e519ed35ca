"""The plan of a stream: which samples come in which task, with which label; their images come with each batch."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from ddn_lightning.samples import LazySamples, Samples

ChangeImages = Callable[[Tensor, int], Tensor]  # raw images of one task -> the task's images
MOMENTS = 10  # of each task, in the timeline of a stream whose samples come in a fixed order


@dataclass(frozen=True, eq=False)
class Plan:
    """The samples of one split in each task; a few tensors, from which a loader takes its batches.

    Args:
        samples: Number of a sample in the data (entries). A sample may have several entries, or none.
        labels: Label that is shown (entries).
        tasks: Task in which the sample comes (entries).
        is_class_of_task: Whether a class is measured in a task (tasks, classes).
        class_order: The classes in the order in which they come.
        is_ordered: Whether the samples of a task come in the order of their entries, instead of shuffled.
        domains: Domain of the image (entries), where a stream makes domains: it stays if the sample comes in another
            task.
        tasks_before: Number of tasks of the sequence that this one follows.
    """

    samples: Tensor
    labels: Tensor
    tasks: Tensor
    is_class_of_task: Tensor
    class_order: Tensor
    is_ordered: bool = False
    domains: Tensor | None = None
    tasks_before: int = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Tensor) -> "Plan":
        """The plan of some entries, in their order."""
        domains = None if self.domains is None else self.domains[index]
        samples, labels, tasks = self.samples[index], self.labels[index], self.tasks[index]
        return replace(self, samples=samples, labels=labels, tasks=tasks, domains=domains)

    def timeline(self) -> Tensor:
        """Number of samples with each label, over time (moments, classes): one moment per task, or ten if ordered."""
        num_tasks, num_classes = self.is_class_of_task.shape
        moments = MOMENTS if self.is_ordered else 1
        when = self.tasks
        if self.is_ordered:
            sizes = self.tasks.bincount(minlength=num_tasks)
            order = self.tasks.argsort(stable=True)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[self.tasks[order]]
            when = moments * self.tasks + moments * place // sizes[self.tasks]
        counts = torch.bincount(when * num_classes + self.labels, minlength=moments * num_tasks * num_classes)
        return counts.view(-1, num_classes)

    def counts(self) -> Tensor:
        """Number of samples with each label in each task (tasks, classes)."""
        num_tasks, num_classes = self.is_class_of_task.shape
        return self.timeline().view(num_tasks, -1, num_classes).sum(dim=1)

    @cached_property
    def checksum(self) -> str:
        """A fingerprint of all entries in their order."""
        checksum = 0
        columns = [self.samples, self.labels, self.tasks]
        if self.domains is not None and not torch.equal(self.domains, self.tasks):
            columns.append(self.domains)
        for column in columns:
            checksum = zlib.crc32(column.contiguous().numpy().data, checksum)
        return f"{checksum:08x}"


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


def random_rank(groups: Tensor, generator: torch.Generator) -> Tensor:
    """The place of each entry in a random order of its group, from 0; ``groups`` are small numbers.

    >>> random_rank(torch.tensor([3, 3, 3, 1]), torch.Generator()).sort().values
    tensor([0, 0, 1, 2])
    """
    order = torch.randperm(len(groups), generator=generator)
    order = order[groups[order].argsort(stable=True)]
    sizes = groups.bincount()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(groups)) - (sizes.cumsum(0) - sizes)[groups[order]]
    return rank
