"""Dark Experience Replay++: rehearse labels and stored logits."""

from dataclasses import replace
from typing import Any

from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import check_not_negative
from ddn_lightning.methods.der import DER
from ddn_lightning.samples import Samples, cross_entropy


class DERPlusPlus(DER):
    """DER++ (Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211).

    Adds to Experience Replay a second, independent draw from memory, whose logits are kept close to the stored ones, as
    in :class:`DER`. Needs room for ``num_classes`` numbers per stored image, and no task boundaries.

    Args:
        alpha: Weight of the distance to the stored logits. Published: 0.1 and 0.2.
        beta: Weight of the loss on the labels. Published: 0.5 to 1.
        **kwargs: Arguments of :class:`ReplayMethod`.

    Example:
        >>> from ddn_lightning import DataDistillNet, SmallNet
        >>> method = DERPlusPlus(SmallNet(), num_classes=10, buffer_size=200, alpha=0.1, distiller=DataDistillNet())
    """

    facts = Facts(
        key="derpp",
        title="DER++",
        reference="[Buzzega et al. 2020](https://arxiv.org/abs/2004.07211)",
        stores="outputs",
        cost="a second draw from memory",
    )

    memory_draws = 2
    rehearses_labels = True

    def __init__(self, *args: Any, alpha: float = 0.2, beta: float = 0.5, **kwargs: Any) -> None:
        super().__init__(*args, alpha=alpha, **kwargs)
        check_not_negative(beta=beta)
        self.beta = beta

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy on the incoming batch, mean squared error on one draw, cross-entropy on the other."""
        distilled, replayed = memory
        new = super().loss(current, distilled)
        logits = self.logits_of(replayed)
        rehearsal = self.beta * cross_entropy(logits, replayed)
        return replace(new, rehearsal=rehearsal, memory_logits=logits, rehearsal_weight=self.beta)
