"""Gradient-based sample selection, as a user would write it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning import ER, Samples, SlotBuffer


class GSSBuffer(SlotBuffer):
    """Keeps samples whose gradients point in different directions (Aljundi et al. 2019, arXiv 1903.08671, greedy).

    The score, by which a sample is replaced: one plus the largest cosine with ten others, of the last layer alone.
    """

    def clear(self) -> None:
        super().clear()
        self.scores = torch.zeros(self.buffer_size, dtype=torch.float64)

    def choose(self, samples: Samples, method: Any) -> Tensor:
        scores = self.scores
        others = self[self.draw(10)] if len(self) else samples
        new, old = (self._directions(part, method) for part in (samples, others))
        cosines = ((new[0] @ old[0].T) * (new[1] @ old[1].T)).amax(dim=1)
        own = (1 + cosines).nan_to_num(0).clamp_min(0).double().cpu()
        slots = torch.arange(len(self), len(self) + len(samples))
        if (late := slots >= self.buffer_size).any():
            victims = torch.multinomial(scores + 1e-9, int(late.sum()), replacement=True, generator=self.generator)
            chance = torch.rand(len(victims), generator=self.generator, dtype=torch.float64)
            slots[late] = victims.where(chance * (scores[victims] + own[late]) < scores[victims], -1)
        scores[slots[slots >= 0]] = own[slots >= 0]
        return slots

    @torch.no_grad()
    def _directions(self, samples: Samples, method: Any) -> tuple[Tensor, Tensor]:
        features = method.backbone(method.normalised(samples.images))
        errors = method.head(features).softmax(dim=1) - functional.one_hot(samples.labels, method.num_classes)
        return functional.normalize(features), functional.normalize(errors)


class GSS(ER):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, memory=GSSBuffer(), **kwargs)
