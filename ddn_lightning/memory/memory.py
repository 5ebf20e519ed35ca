"""What a method expects of its memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ddn_lightning.construction import Constructed
from ddn_lightning.errors import check_positive
from ddn_lightning.samples import Samples


class MemoryHost(Protocol):
    """What a memory may ask of the method that offers it samples."""

    num_classes: int

    @property
    def network(self) -> nn.Module:
        """From images to logits."""

    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as the network takes them, not augmented."""


class Memory(Constructed, ABC):
    """Slots that are filled from a stream and drawn from.

    Every rank has a memory of its own and does the same with it, by a generator on the host: all are equal.

    Args:
        buffer_size: Images that there is room for; by default as many as the method's ``buffer_size`` says.
        seed: Seed of the generator. A method sets its own at the start of a fit.
    """

    learning_rates: Mapping[str, float] = MappingProxyType({})  # by option, where images are learned
    loss: Tensor | None = None  # of the batch offered last, where images are learned

    def __init__(self, buffer_size: int | None = None, seed: int = 0) -> None:
        if buffer_size is not None:
            check_positive(buffer_size=buffer_size)
        self.buffer_size = buffer_size or 0
        self.seed = seed

    def reset(self, buffer_size: int, seed: int) -> None:
        """Begin anew, empty."""
        check_positive(buffer_size=buffer_size)
        self.buffer_size, self.seed = buffer_size, seed
        vars(self).pop("generator", None)
        self.clear()

    @abstractmethod
    def clear(self) -> None:
        """Forget all samples."""

    @cached_property
    def generator(self) -> torch.Generator:
        """The memory's own, made when first used: a generator cannot be handed to a spawned process."""
        return torch.Generator().manual_seed(self.seed)

    @abstractmethod
    def __len__(self) -> int:
        """Number of filled slots."""

    @property
    def slots(self) -> Tensor:
        """The filled slots, ascending and on the host."""
        return torch.arange(len(self))

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """Classes of what the filled slots hold, in their order."""

    @abstractmethod
    def __getitem__(self, slots: Tensor) -> Samples:
        """What the slots hold, with the slots noted down."""

    @abstractmethod
    def add(self, samples: Samples, host: MemoryHost | None = None) -> Tensor:
        """Offer a batch.

        Args:
            samples: The batch over all ranks, not augmented.
            host: The method, right after its step on the batch, for memories whose choice depends on it.

        Returns:
            The slots that hold another sample now, on the host.
        """

    @abstractmethod
    def slots_of(self, tasks: Iterable[int]) -> Tensor:
        """The filled slots that hold samples of these tasks, ascending and on the host."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move the contents, as after loading a checkpoint."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped; loads with ``weights_only=True``."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved memory of the same size."""

    def draw(self, size: int, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Choose filled slots uniformly without replacement.

        Args:
            size: How many; fewer are drawn if there are not as many.
            tasks: Choose only among the classes of these tasks: those before the current one are the *old memory*.
            generator: Used instead of the memory's own, so that the draw leaves later ones as they would have been.
        """
        generator = self.generator if generator is None else generator
        eligible = self.slots if tasks is None else self.slots_of(tasks)
        return eligible[torch.randperm(len(eligible), generator=generator)[:size]]
