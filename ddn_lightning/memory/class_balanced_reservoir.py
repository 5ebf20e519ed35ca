"""Class-balanced reservoir: equally many samples of each class, uniformly chosen within the class."""

import torch
from torch import Tensor

from ddn_lightning.memory.exemplar_set import rank_in_class
from ddn_lightning.memory.memory import MemoryOwner
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.samples import Samples


class ClassBalancedReservoir(SlotBuffer):
    """Balances the classes, however frequent each is (as CBRS, Chrysakis and Moens, ICML 2020).

    Each sample gets a random key. The memory keeps the samples with the smallest keys of each class: first the smallest
    of every class, then the second smallest, and so on until it is full. The share of a class never grows, so its
    samples are always uniform over all that were offered. Classes smaller than their share leave the rest to others.

    Args:
        buffer_size: Number of slots; by default the method's ``buffer_size``.
        seed: Seed of the generator behind :meth:`add` and :meth:`draw`.

    Example:
        >>> buffer = ClassBalancedReservoir(buffer_size=4)
        >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
        >>> _ = buffer.add(Samples(torch.zeros(8, 1, 8, 8, dtype=torch.uint8), labels))
        >>> buffer.labels.bincount()
        tensor([2, 2])
    """

    def clear(self) -> None:
        """Remove all samples and keys."""
        super().clear()
        self.keys = torch.zeros(self.buffer_size, dtype=torch.float64)

    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """Slots that are free, or whose samples are no longer among the smallest keys."""
        keys = torch.rand(len(samples), generator=self.generator, dtype=torch.float64)
        filled = self.slots
        labels = torch.cat([self.labels.cpu(), samples.labels.cpu()])
        all_keys = torch.cat([self.keys[filled], keys])
        order = all_keys.argsort()
        rank = torch.empty_like(order)
        rank[order] = rank_in_class(labels[order])  # 0 for the smallest key of a class
        is_kept = torch.zeros(len(labels), dtype=torch.bool)
        is_kept[(rank + all_keys).argsort()[: self.buffer_size]] = True  # keys are below 1: they break ties in rank
        is_free = torch.ones(self.buffer_size, dtype=torch.bool)
        is_free[filled[is_kept[: len(filled)]]] = False
        slots = torch.full((len(samples),), -1)
        new = is_kept[len(filled) :]
        slots[new] = is_free.nonzero().squeeze(1)[: int(new.sum())]
        self.keys[slots[new]] = keys[new]
        return slots
