"""Averaged gradient episodic memory, as a user would write it."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning import ReplayLoss, ReplayMethod, Samples, cross_entropy


class AGEM(ReplayMethod):
    """Steps on the incoming batch, but never uphill for memory (Chaudhry et al. 2019, https://arxiv.org/abs/1812.00420)."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        (replayed,) = memory
        logits = self.logits_of(replayed)
        return replace(self.current_loss(current), rehearsal=cross_entropy(logits, replayed), memory_logits=logits)

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        value, new = self.gradient_of([lambda: loss.other], parameters)
        if loss.rehearsal is None:
            return value, new
        rehearsal = loss.rehearsal
        _, old = self.gradient_of([lambda: rehearsal], parameters)
        pairs = [(g, r) for g, r in zip(new, old, strict=True) if g is not None and r is not None]
        product = torch.stack([(g * r).sum() for g, r in pairs]).sum()
        length = torch.stack([r.square().sum() for _, r in pairs]).sum().clamp_min(1e-12)
        uphill = (product / length).clamp_max(0)  # Eq. 11: the component against the memory's gradient
        return value, [g if g is None or r is None else g - uphill * r for g, r in zip(new, old, strict=True)]
