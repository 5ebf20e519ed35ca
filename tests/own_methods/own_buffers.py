"""Memories as a user would write them: only ``choose``, and attributes to choose by."""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning import Samples, SlotBuffer


class Backwards(SlotBuffer):
    """Fills from the last slot on, then replaces the oldest."""

    def choose(self, samples: Samples, method: Any) -> Tensor:
        turn = torch.arange(self.seen, self.seen + len(samples))
        return self.buffer_size - 1 - turn % self.buffer_size


class EverySecond(SlotBuffer):
    """Keeps every second sample."""

    def choose(self, samples: Samples, method: Any) -> Tensor:
        turn = torch.arange(self.seen, self.seen + len(samples))
        return (turn // 2 % self.buffer_size).where(turn % 2 == 0, -1)


class EvenClasses(SlotBuffer):
    """Keeps the newest samples of even classes, which it counts in attributes."""

    def clear(self) -> None:
        super().clear()
        self.stored, self.of_class = 0, {"numbers": [0] * 10, "newest": torch.full((10,), -1)}

    def choose(self, samples: Samples, method: Any) -> Tensor:
        is_kept = samples.labels.cpu() % 2 == 0
        slots = torch.full((len(samples),), -1)
        slots[is_kept] = (self.stored + torch.arange(int(is_kept.sum()))) % self.buffer_size
        self.stored += int(is_kept.sum())
        self.of_class["newest"][samples.labels[is_kept]] = slots[is_kept]
        for label in samples.labels[is_kept].tolist():
            self.of_class["numbers"][label] += 1
        return slots
