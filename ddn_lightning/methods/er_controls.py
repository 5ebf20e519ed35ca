"""Forms of Experience Replay that take apart what a replayed batch does: its gradient, its statistics, its domain.

They are controls of a study, each a few lines, and run by their import path:
``ddn fit ... --model ddn_lightning.methods.er_controls.StatisticsDraw``.
"""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning.errors import check_not_negative
from ddn_lightning.methods.base import ReplayLoss
from ddn_lightning.methods.er import ER
from ddn_lightning.random_streams import OLD_MEMORY
from ddn_lightning.samples import Samples, concatenate, cross_entropy


class StatisticsDraw(ER):
    """One more draw from old memory that moves BatchNorm's running statistics and nothing else."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """ER's, and a forward pass without gradient beside it."""
        loss = super().loss(current, *memory)
        old = self.draw_memory(self.old_tasks, self.streams[OLD_MEMORY])
        if old is not None:
            with torch.no_grad():
                self.logits_of(old)
        return loss


class NewestStatistics(ER):
    """Calibrated statistics are those of the newest task's stored samples: images as they came in last."""

    def calibration_slots(self) -> Tensor:
        """The slots of the current task; none while nothing is stored."""
        return self.memory.slots_of([self.task]) if len(self.memory) else super().calibration_slots()


class MixedDraw(ER):
    """Some incoming samples are forwarded together with the replayed ones, without a loss of their own there.

    Args:
        *args: Arguments of :class:`ER`.
        incoming: How many, on each device.
        **kwargs: Arguments of :class:`ER`.
    """

    def __init__(self, *args: Any, incoming: int = 8, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(incoming=incoming)
        self.incoming = incoming

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """ER's, with replayed logits that are normalised with incoming samples among them."""
        (replayed,) = memory
        logits = self.logits_of(current)
        mixed = concatenate([replayed, current[: self.incoming]])
        memory_logits = self.logits_of(mixed)[: len(replayed)]
        return ReplayLoss(cross_entropy(logits, current), logits, cross_entropy(memory_logits, replayed), memory_logits)


class MemoryStep(ER):
    """One more step after each, on a draw from memory alone."""

    def after_step(self) -> None:
        """Rehearse once more."""
        replayed = self.draw_memory()
        if replayed is not None:
            logits = self.logits_of(replayed)
            self._descend(ReplayLoss(cross_entropy(logits, replayed), logits))
