"""New classes in new domains: every task has its own classes, with images changed as in its domain."""

from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning.data.plan import Plan
from ddn_lightning.data.streams.domain_stream import Corruptions, DomainStream
from ddn_lightning.data.streams.stream import Stream


class ShiftedClasses(Stream):
    """Classes of one task only, as without a stream, whose images shift from task to task as in ``domains``.

    Tasks may have any size. Train and test images are changed alike. Where another stream moves samples between
    tasks, each keeps the image of its domain.

    Args:
        domains: How images differ by task; by default :class:`Corruptions`.

    Example:
        >>> from ddn_lightning import RotatedImages, SplitDigits
        >>> data = SplitDigits(task_sizes=[6, 2, 2], stream=ShiftedClasses(RotatedImages()))
        >>> data.num_tasks, data.task_classes[1].tolist()
        (3, [6, 7])
    """

    def __init__(self, domains: DomainStream | None = None) -> None:
        self.domains = Corruptions() if domains is None else domains

    @property
    def is_spaced(self) -> bool:  # type: ignore[override]  # a fact of the class in others
        """Whether a task's images depend on the number of tasks."""
        return self.domains.is_spaced

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Keep the samples of each task, as of its domain."""
        return self.change_test(plan)

    def change_test(self, plan: Plan) -> Plan:
        """Keep the samples of each task, as of its domain."""
        return replace(plan, domains=plan.tasks)

    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """The images of the task's domain."""
        return self.domains.change_images(images, task, num_tasks, generator)
