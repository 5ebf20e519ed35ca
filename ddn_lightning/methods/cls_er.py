"""CLS-ER: replay with a fast and a slow moving average of the network."""

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ddn_lightning.core.growth import grow_head
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.errors import check_fraction, check_not_negative
from ddn_lightning.learner import Facts
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy


class CLSER(ReplayMethod):
    """CLS-ER (Arani et al., ICLR 2022, https://arxiv.org/abs/2201.12604).

    Adds to Experience Replay two moving averages of the working network: a *plastic* one that is updated often and a
    *stable* one that is updated rarely. On memory, the logits are kept close to those of the average that is more
    confident in the true class. Needs no task boundaries; stores both averages, each with BatchNorm statistics of its
    own. Reading: the cross-entropies of both batches are added, as in the code that the DDN paper builds on, where the
    authors' has one mean over both: with equal batches their weight is twice as much here, at half the learning rate.

    Args:
        consistency_weight: Weight of the distance to the average. Published: 0.15 on CIFAR-10, 0.1 on Tiny-ImageNet.
        plastic_rate: Probability of updating the plastic network after a step. Published: 0.3 to 1 on CIFAR-10, 0.08 on
            Tiny-ImageNet.
        stable_rate: Probability of updating the stable network after a step. Published: 0.1 to 0.8 on CIFAR-10, 0.04 to
            0.07 on Tiny-ImageNet.
        ema_decay: Decay of both averages; smaller in the first steps.
        evaluate: The network that predicts. The DDN paper evaluates the working one, CLS-ER's own paper the stable one.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts(
        key="cls_er",
        title="CLS-ER",
        reference="[Arani et al. 2022](https://arxiv.org/abs/2201.12604)",
        stores="two averaged networks",
        cost="2 forward passes on memory",
    )

    lost_in_rounding = "moving averages"
    cannot_average = "it has averages of its own, see evaluate"

    def __init__(
        self,
        *args: Any,
        consistency_weight: float = 0.1,
        plastic_rate: float = 0.9,
        stable_rate: float = 0.7,
        ema_decay: float = 0.999,
        evaluate: Literal["working", "stable", "plastic"] = "working",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(consistency_weight=consistency_weight)
        check_fraction(plastic_rate=plastic_rate, stable_rate=stable_rate, ema_decay=ema_decay)
        self.consistency_weight = consistency_weight
        self.rates = {"plastic": plastic_rate, "stable": stable_rate}
        self.ema_decay = ema_decay
        self.evaluate = evaluate
        # in training mode with the method: they update BatchNorm statistics of their own
        self.averages = nn.ModuleDict({name: copy.deepcopy(self.network).requires_grad_(False) for name in self.rates})

    @property
    def backbones(self) -> list[nn.Module]:
        """The backbone and those of the averages."""
        return [self.backbone, *(average.get_submodule("backbone") for average in self.averages.values())]

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy on both batches, and the distance to the more confident average."""
        (replayed,) = memory
        new = self.current_loss(current)
        logits = self.logits_of(replayed)
        distances = (logits - self._confident_logits(replayed)).square().mean(dim=1)
        other = new.other + self.consistency_weight * replayed.mean(distances)
        return ReplayLoss(other, new.current_logits, cross_entropy(logits, replayed), logits)

    @torch.no_grad()
    def _confident_logits(self, samples: Samples) -> Tensor:
        plastic, stable = (self.averages[name](samples.images) for name in ("plastic", "stable"))
        confidence = [z.softmax(dim=1).gather(1, samples.labels[:, None]) for z in (plastic, stable)]
        return torch.where(confidence[1] > confidence[0], stable, plastic)

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the parameters of each average with its probability."""
        decay = min(1 - 1 / (self.trainer.global_step + 1), self.ema_decay)
        for name, average in self.averages.items():
            if torch.rand((), generator=self.streams[f"update {name}"]) < self.rates[name]:
                torch._foreach_lerp_(list(average.parameters()), list(self.network.parameters()), 1 - decay)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs, also of the averages."""
        super().grow(num_classes)
        for average in self.averages.values():
            grow_head(average.get_submodule("head"), self)

    def class_scores(self, images: Tensor) -> Tensor:
        """Scores of the network chosen by ``evaluate``."""
        return self.masked(self(images) if self.evaluate == "working" else self.averages[self.evaluate](images))
