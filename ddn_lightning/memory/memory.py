"""The base class of memories."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import CLASS_PATH, INIT_ARGS, Constructed, changed_arguments
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.notes import note
from ddn_lightning.samples import Samples

MADE = "made"  # the class and arguments of a saved memory
LARGE = 4096  # slots
BY_THE_METHOD = ("buffer_size", "seed")  # arguments that the method sets anew
OF_ANY_MEMORY = ("constructor_arguments", "generator", "is_taken", *BY_THE_METHOD)  # attributes


class MemoryOwner(Protocol):
    """What a memory may use of its method."""

    num_classes: int

    @property
    def network(self) -> nn.Module:
        """Backbone and head, from images to logits."""

    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as network inputs, not augmented."""


class Memory(Constructed, ABC):
    """Slots that are filled from a stream of samples and drawn from.

    Every rank has the same memory: all ranks add the same samples and draw from equal generators on the host.

    Args:
        buffer_size: Number of images; by default the method's ``buffer_size``.
        seed: Seed of the generator; replaced by the method at the start of a fit.
    """

    learning_rates: Mapping[str, float] = MappingProxyType({})  # by option, for memories that learn images
    loss: Tensor | None = None  # on the last added batch, for memories that learn images
    is_taken = False  # by a method: two would share the samples

    def __init__(self, buffer_size: int | None = None, seed: int = 0) -> None:
        if buffer_size is not None:
            check_positive(buffer_size=buffer_size)
        self.buffer_size = buffer_size or 0
        self.seed = seed

    def reset(self, buffer_size: int, seed: int) -> None:
        """Clear the memory and set its size and seed."""
        check_positive(buffer_size=buffer_size)
        self.buffer_size, self.seed = buffer_size, seed
        vars(self).pop("generator", None)
        self.clear()

    def check(self, num_classes: int, image_shape: Sequence[int]) -> None:
        """Refuse data that the memory cannot hold, right before training.

        Args:
            num_classes: Number of classes of the whole sequence.
            image_shape: Channels, height and width.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove all samples."""

    @cached_property
    def generator(self) -> torch.Generator:
        """The random generator, created on first use: generators cannot be pickled for spawned processes."""
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
        """Classes of the stored samples, in the order of :attr:`slots`."""

    @abstractmethod
    def __getitem__(self, slots: Tensor) -> Samples:
        """The samples in these slots, with their slots."""

    @abstractmethod
    def add(self, samples: Samples, method: MemoryOwner | None = None) -> Tensor:
        """Offer a batch, of which the memory stores all, some or no samples.

        Args:
            samples: The batch over all ranks, not augmented.
            method: The method right after its step on the batch, for memories that select by its network.

        Returns:
            The slots with new samples, on the host.
        """

    @abstractmethod
    def slots_of(self, tasks: Iterable[int]) -> Tensor:
        """The slots with samples of these tasks, ascending and on the host."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move the samples to a device, after loading a checkpoint."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The full state for an exact resume; loads with ``weights_only=True``."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a memory of the same size."""

    def full_bytes(self, form: Samples) -> int:
        """Bytes of the full memory, for a budget in bytes.

        Args:
            form: One sample as it is stored.
        """
        return self.buffer_size * size_in_bytes(vars(form))

    def grown_state(self, state: dict[str, Any], num_classes: int) -> dict[str, Any]:
        """A saved state for more classes than it was saved with, before it is loaded."""
        return state

    def draw(self, size: int, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draw filled slots uniformly without replacement.

        Args:
            size: Number of slots; fewer if there are not as many.
            tasks: Draw only from these tasks; those before the current one are the *old memory*.
            generator: Used instead of the memory's own, whose later draws then do not shift.
        """
        generator = self.generator if generator is None else generator
        eligible = self.slots if tasks is None else self.slots_of(tasks)
        return eligible[choice(len(eligible), size, generator)]


def choice(number: int, size: int, generator: torch.Generator | None = None) -> Tensor:
    """Some of the integers below ``number``, uniformly and without replacement; all of them if there are not as many.

    A permutation of :data:`LARGE` or more takes longer than the draw should: of so many, integers are drawn with
    replacement, and the first ``size`` different ones are taken.
    """
    if number < max(LARGE, 8 * size):
        return torch.randperm(number, generator=generator)[:size]
    drawn = torch.randint(number, (2 * size,), generator=generator)
    values, index = torch.unique(drawn, return_inverse=True)
    if len(values) < size:  # once in a blue moon
        return torch.randperm(number, generator=generator)[:size]
    first = torch.full_like(values, len(drawn)).scatter_reduce(0, index, torch.arange(len(drawn)), "amin")
    return drawn[first.sort().values[:size]]


def sized(memory: Memory, buffer_size: int, arguments: dict[str, Any], hparams: Any) -> int:
    """Clear the memory of a new method; its own size, if given, overrides and is recorded as the method's.

    Args:
        memory: The memory.
        buffer_size: The method's size.
        arguments: The method's constructor arguments.
        hparams: Its hyper-parameters.
    """
    size = memory.buffer_size or buffer_size
    if arguments.get("buffer_size") not in (None, size):
        note(f"the memory has {size} slots, its own buffer_size, not the {buffer_size} of the method")
        arguments["buffer_size"] = size
    hparams["buffer_size"] = size
    memory.reset(size, seed=0)
    return size


def field_lengths(contents: Mapping[str, Any]) -> list[int]:
    """The length of each saved field; -1 for one that is not a tensor of samples."""
    return [len(field) if isinstance(field, Tensor) and field.dim() else -1 for field in contents.values()]


def size_in_bytes(values: object) -> int:
    """Bytes of all tensors in nested dictionaries and lists.

    >>> size_in_bytes({"labels": torch.zeros(3, dtype=torch.long), "policy": [torch.zeros(2), 7]})
    32
    """
    if isinstance(values, Tensor):
        return values.nbytes
    if isinstance(values, dict):
        return size_in_bytes(list(values.values()))
    return sum(map(size_in_bytes, values)) if isinstance(values, list | tuple) else 0


def check_made(memory: Memory, state: Mapping[str, Any]) -> None:
    """Refuse the state of a memory of another class, or of one that chose its samples by other arguments.

    Args:
        memory: The memory to restore.
        state: The saved state, with its class and arguments.
    """
    made = checks.mapping("memory/made", state.get(MADE), (CLASS_PATH, INIT_ARGS))
    saved, own = str(made[CLASS_PATH]).rpartition(".")[2], type(memory).__name__
    if saved != own:
        raise ConfigurationError(f"the checkpoint's memory is a {saved}, got a {own}")
    arguments = checks.mapping("memory/made/init_args", made[INIT_ARGS])
    changed = changed_arguments({**made, INIT_ARGS: arguments}, memory)
    changed = [one for one in changed if one.partition("=")[0] not in BY_THE_METHOD]
    if changed and not memory.learning_rates:  # those that learn images may go on otherwise
        raise ConfigurationError(f"the checkpoint's memory is a {own} with other arguments, got {', '.join(changed)}")
