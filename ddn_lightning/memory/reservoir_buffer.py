"""Reservoir memory: a uniform sample of all samples seen so far."""

import torch
from torch import Tensor

from ddn_lightning.memory.memory import MemoryOwner
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.samples import Samples


class ReservoirBuffer(SlotBuffer):
    """Keeps every sample of a stream with equal probability (Vitter's algorithm R, doi:10.1145/3147.3165).

    Args:
        buffer_size: Number of slots; by default the method's ``buffer_size``.
        seed: Seed of the generator behind :meth:`add` and :meth:`draw`.

    Example:
        >>> buffer = ReservoirBuffer(buffer_size=2)
        >>> buffer.add(Samples(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5)))
        tensor([0, 1])
        >>> len(buffer), buffer.seen
        (2, 5)
        >>> len(buffer[buffer.draw(32)])
        2
    """

    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """Free slots first; then, for the n-th sample of the stream, a uniform number below n, if that is a slot."""
        turn = torch.arange(self.seen, self.seen + len(samples))  # number of samples before each
        free = min(max(self.buffer_size - self.seen, 0), len(samples))  # number of samples that get a free slot
        chance = torch.rand(len(samples) - free, generator=self.generator, dtype=torch.float64)
        slots = torch.cat([turn[:free], (chance * (turn[free:] + 1)).long()])  # uniform in 0 ... turn, inclusive
        return slots.where(slots < self.buffer_size, -1)
