"""LODE: DER++ that separates telling new classes from old ones and from each other."""

from typing import Any

import torch
from torch import Tensor

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import check_not_negative
from ddn_lightning.methods.derpp import DERPlusPlus
from ddn_lightning.samples import Samples


class LODE(DERPlusPlus):
    r"""Loss decoupling (Liang and Li, NeurIPS 2023, https://openreview.net/forum?id=9Oi3YxIBSa), on DER++.

    The cross-entropy of a new class is the sum of two: new classes against old ones, which makes the network forget,
    and the class against the other new ones. LODE gives the first a small weight, from the second task on:

    .. math:: L_{new} = \rho \frac{|C_n|}{|C_o|}\, \big(-\log P(C_n \mid x)\big) - \log P(y \mid C_n, x)

    with :math:`C_o` the classes of earlier tasks and :math:`C_n` all others. The rest is DER++; with ``alpha`` = 0 and
    ``beta`` = 1 it is the paper's LODE on ER, where the code halves the sum of both batches and needs twice the ``lr``.

    Needs task boundaries; storage and the cost of a step, 1.5 of ER's, are those of DER++. Readings: :math:`|C_n|`
    counts the classes of the task, so that the weight is :math:`\rho / t` after t equal tasks, as in the authors' code;
    :math:`C_n` also has the classes still to come, as there; and an incoming sample of an old class has the plain
    cross-entropy. That comes on streams that tell no boundaries; there :math:`C_o` are the classes seen before the
    stretch.

    Args:
        rho: Weight of new classes against old ones. Published on DER++: 0.05 to 0.5.
        **kwargs: Arguments of :class:`DERPlusPlus`.
    """

    facts = Facts(
        key="lode",
        title="LODE",
        reference="[Liang and Li 2023](https://openreview.net/forum?id=9Oi3YxIBSa)",
        stores="outputs",
        cost="a second draw from memory",
    )

    is_old_class: Tensor  # (num_classes)

    def __init__(self, *args: Any, rho: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(rho=rho)
        self.rho = rho
        self.register_buffer("is_old_class", torch.zeros(self.num_classes, dtype=torch.bool))

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs."""
        super().grow(num_classes)
        self.is_old_class = resized(self.is_old_class, (num_classes,))

    def begin_task(self) -> None:
        """Set the old classes."""
        self.is_old_class = self.is_seen_class.clone()
        if self.sequence.stream.tells_boundaries:  # then those of the task count as seen already
            self.is_old_class[self.sequence.is_class_of_task[self.task]] = False

    def current_loss(self, current: Samples) -> ReplayLoss:
        """The decoupled cross-entropy of the incoming batch."""
        number = self.is_old_class.sum()
        weight = self.rho * (self.is_seen_class.sum() - number) / number.clamp_min(1)
        logits = self.logits_of(current)
        return ReplayLoss(current.mean(decoupled_losses(logits, current.labels, self.is_old_class, weight)), logits)


def decoupled_losses(logits: Tensor, labels: Tensor, is_old: Tensor, weight: Tensor) -> Tensor:
    """The loss of each sample: new against old classes with a weight, plus its class among the new ones.

    Args:
        logits: Logits (samples, num_classes).
        labels: Class of each sample; one of an old class has the plain cross-entropy.
        is_old: The old classes (num_classes).
        weight: Weight of new against old classes.
    """
    own = logits.gather(1, labels[:, None]).squeeze(1)
    of_all = logits.logsumexp(dim=1)
    of_new = logits.masked_fill(is_old, torch.finfo(logits.dtype).min).logsumexp(dim=1)
    return torch.where(is_old[labels], of_all - own, weight * (of_all - of_new) + of_new - own)
