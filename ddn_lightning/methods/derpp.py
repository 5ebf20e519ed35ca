"""Dark Experience Replay++: rehearse labels and stored logits."""

from typing import Any

from ddn_lightning.errors import check_not_negative
from ddn_lightning.learner import Facts
from ddn_lightning.methods.replay_method import ReplayMethod
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy


class DERPlusPlus(ReplayMethod):
    """DER++ (Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211).

    Two independent draws from memory. On the first, logits are kept close to the stored ones, those of the augmented
    image before the step in which it was stored; on the second, labels are rehearsed.

    Args:
        alpha: Weight of the distance to the stored logits. Published: 0.1 to 0.3.
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
    stores_logits = True

    def __init__(self, *args: Any, alpha: float = 0.2, beta: float = 0.5, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy on the incoming batch, mean squared error on one draw, cross-entropy on the other."""
        distilled, replayed = memory
        assert distilled.logits is not None
        new = self.current_loss(current)
        distances = (self.logits_of(distilled) - distilled.logits).square().mean(dim=1)
        logits = self.logits_of(replayed)
        other = new.other + self.alpha * distilled.mean(distances)
        return ReplayLoss(other, new.current_logits, self.beta * cross_entropy(logits, replayed), logits, self.beta)
