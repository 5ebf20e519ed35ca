"""The base class of domain-incremental streams."""

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning.data.plan import Plan
from ddn_lightning.data.streams.stream import Stream


class DomainStream(Stream):
    """All samples and classes in every task, with images that differ by task: the *domains*.

    ``num_tasks`` is the number of domains. Train and test images are changed alike. Where a further stream moves
    samples between tasks, each keeps the image of its domain. A stream implements :meth:`change_images`; it is called
    for each batch, so that no domain is copied into memory.
    """

    has_disjoint_classes = False
    is_by_domain = True

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Repeat all samples in every task."""
        return self.change_test(plan)

    def change_test(self, plan: Plan) -> Plan:
        """Repeat all samples in every task."""
        num_tasks = len(plan.is_class_of_task)
        tasks = torch.arange(num_tasks).repeat_interleave(len(plan))
        samples, labels = plan.samples.repeat(num_tasks), plan.labels.repeat(num_tasks)
        return replace(plan, samples=samples, labels=labels, tasks=tasks, domains=tasks)

    @abstractmethod
    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """The images of a domain, from raw ``uint8`` ones."""
