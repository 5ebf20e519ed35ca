"""The base class of streams, each of which changes a plan: which sample comes when, and with which label."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ddn_lightning.checkpoint.construction import Constructed, construction_of, full_signature
from ddn_lightning.data.plan import Plan


class Stream(Constructed, ABC):
    """Turns the plan of a task sequence into another one.

    A stream implements :meth:`change` in a few lines on tensors and states the facts below. Several streams are applied
    one after the other.

    Example:
        >>> class EveryOther(Stream):
        ...     def change(self, plan, generator):
        ...         return plan[torch.arange(0, len(plan), 2)]
        >>> from ddn_lightning import SplitDigits
        >>> data = SplitDigits(stream=EveryOther())
        >>> data.setup("fit")
        >>> len(data.train_set)
        719
    """

    has_disjoint_classes: ClassVar[bool] = True  # whether each class comes in a single task
    tells_boundaries: ClassVar[bool] = True  # whether a method is told a task's classes when the task begins
    is_by_domain: ClassVar[bool] = False  # whether every task has all classes
    is_spaced: ClassVar[bool] = False  # whether a task's images depend on the number of tasks

    @abstractmethod
    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """The plan of the training samples.

        Args:
            plan: The plan so far.
            generator: The stream's own, from the seed of the sequence's streams.
        """

    def change_test(self, plan: Plan) -> Plan:
        """The plan of the test samples, by default unchanged."""
        return plan

    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """The images of a task, from raw ``uint8`` ones; by default unchanged.

        Args:
            images: Raw images (batch, channels, height, width), of any part of the task.
            task: The task, counted from 0.
            num_tasks: Number of tasks.
            generator: The same numbers at every call for this task.
        """
        return images

    def __repr__(self) -> str:
        """The class with all its arguments, as a checkpoint compares them."""
        parameters = full_signature(type(self)).parameters.values()
        values = {p.name: p.default for p in parameters if p.default is not p.empty}
        values |= construction_of(self)["init_args"]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
