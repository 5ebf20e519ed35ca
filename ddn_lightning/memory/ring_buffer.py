"""Ring buffer: the newest samples of each class, equally many of each."""

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError
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
        self.num_classes = num_classes
        super().__init__(buffer_size, seed)

    def clear(self) -> None:
        """Remove all samples and counts."""
        super().clear()
        self.policy = {"offered": torch.zeros(self.buffer_size, dtype=torch.long)}  # at most one class per slot

    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """The slot of the oldest sample of the same class."""
        num_classes = self.num_classes if method is None or self.num_classes else method.num_classes
        if not num_classes or (room := self.buffer_size // num_classes) < 1:
            classes = "an unknown number of" if num_classes is None else num_classes
            raise ConfigurationError(f"buffer_size must give each of {classes} classes a slot, got {self.buffer_size}")
        labels, offered = samples.labels.cpu(), self.policy["offered"]
        turn = offered[labels] + rank_in_class(labels)
        offered += labels.bincount(minlength=len(offered))
        return labels * room + turn % room
