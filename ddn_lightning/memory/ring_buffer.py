"""Ring buffer: the newest samples of each class, equally many of each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError, check_positive, note
from ddn_lightning.memory.exemplar_set import rank_in_class
from ddn_lightning.memory.memory import MemoryOwner
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.samples import Samples


class RingBuffer(SlotBuffer):
    """One ring of equal size for each class of the sequence (https://arxiv.org/abs/1902.10486).

    Args:
        buffer_size: Number of slots; by default the method's ``buffer_size``.
        seed: Seed of the generator behind :meth:`draw`.
        num_classes: Number of classes that share the slots; by default the method's ``num_classes``.
    """

    def __init__(self, buffer_size: int | None = None, seed: int = 0, num_classes: int | None = None) -> None:
        if num_classes is not None:
            check_positive(num_classes=num_classes)
        self.num_classes = num_classes
        super().__init__(buffer_size, seed)

    def clear(self) -> None:
        """Remove all samples and counts."""
        super().clear()
        self.offered = torch.zeros(self.buffer_size, dtype=torch.long)  # by class: at most one per slot

    def check(self, num_classes: int, image_shape: Sequence[int]) -> None:
        """Refuse fewer slots than classes, and note slots that stay empty."""
        rings = self.num_classes or num_classes
        if rings < num_classes:
            raise ConfigurationError(
                f"num_classes of RingBuffer must be at least the method's {num_classes}, got {rings}"
            )
        if unused := self.buffer_size - rings * self._ring_size(rings):
            note(f"RingBuffer leaves {unused} of {self.buffer_size} slots empty: {rings} classes get equally many")

    def grown_state(self, state: dict[str, Any], num_classes: int) -> dict[str, Any]:
        """Refuse more classes than the rings were divided among."""
        if self.num_classes is None:
            raise ConfigurationError(
                "RingBuffer cannot go on with new classes: its rings have equal shares of the slots. Give it "
                "num_classes, or the first run a larger num_classes, from the start"
            )
        return super().grown_state(state, num_classes)

    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """The slot of the oldest sample of the same class."""
        size = self._ring_size(self.num_classes if method is None or self.num_classes else method.num_classes)
        labels = samples.labels.cpu()
        turn = self.offered[labels] + rank_in_class(labels)
        self.offered += labels.bincount(minlength=len(self.offered))
        return labels * size + turn % size

    def _ring_size(self, rings: int | None) -> int:
        if not rings or rings > self.buffer_size:
            classes = "an unknown number of" if rings is None else rings
            raise ConfigurationError(f"buffer_size must give each of {classes} classes a slot, got {self.buffer_size}")
        return self.buffer_size // rings
