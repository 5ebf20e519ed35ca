"""Variants of Experience Replay that isolate the effects of a replayed batch: gradient, BatchNorm statistics, domain.

Controls of a study, run by their import path:
``ddn fit ... --model study.er_controls.StatisticsDraw``.
"""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import check_not_negative
from ddn_lightning.methods.er import ER
from ddn_lightning.random_streams import OLD_MEMORY
from ddn_lightning.samples import Samples, concatenate, cross_entropy


class StatisticsDraw(ER):
    """An additional draw from old memory that only updates BatchNorm's running statistics."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """ER's loss, and a forward pass of the additional draw without gradient."""
        loss = super().loss(current, *memory)
        old = self.draw_memory(self.old_tasks, self.streams[OLD_MEMORY])
        if old is not None:
            with torch.no_grad():
                self.logits_of(old)
        return loss


class NewestStatistics(ER):
    """Calibrated statistics are measured on the stored samples of the newest task only."""

    def calibration_slots(self) -> Tensor:
        """The slots of the current task; none while nothing is stored."""
        return self.memory.slots_of([self.task]) if len(self.memory) else super().calibration_slots()


class MixedDraw(ER):
    """Some incoming samples are forwarded together with the replayed ones, without adding to the loss there.

    Args:
        *args: Arguments of :class:`ER`.
        incoming: Number of these samples on each device.
        **kwargs: Arguments of :class:`ER`.
    """

    def __init__(self, *args: Any, incoming: int = 8, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(incoming=incoming)
        self.incoming = incoming

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """ER's loss, with incoming samples in the BatchNorm statistics of the replayed batch."""
        (replayed,) = memory
        logits = self.logits_of(current)
        mixed = concatenate([replayed, current.subset(slice(self.incoming))])
        with self.tracking(replayed):
            memory_logits = self.adapted(self(mixed.images))[: len(replayed)]
        return ReplayLoss(cross_entropy(logits, current), logits, cross_entropy(memory_logits, replayed), memory_logits)


class MemoryStep(ER):
    """An additional step after each, on a draw from memory only."""

    def after_step(self) -> None:
        """Take a step on memory."""
        replayed = self.draw_memory()
        if replayed is not None:
            logits = self.logits_of(replayed)
            self.descend(ReplayLoss(cross_entropy(logits, replayed), logits))
