"""Dark Experience Replay: rehearse stored logits."""

from dataclasses import replace
from typing import Any

from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import check_not_negative
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.samples import Samples


class DER(ReplayMethod):
    r"""DER (Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211).

    Adds to Experience Replay that memory is replayed without labels: logits are kept close to the stored ones z, those
    of the augmented image before the step in which it was stored:

    .. math:: L = \ell_{CE}(f(x), y) + \alpha \, \|f(x_m) - z\|^2 / \text{num\_classes}

    Needs room for ``num_classes`` numbers per stored image, and no task boundaries.

    Args:
        alpha: Weight of the distance to the stored logits. Published: 0.3, and 0.1 on Tiny-ImageNet.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts(
        key="der",
        title="DER",
        reference="[Buzzega et al. 2020](https://arxiv.org/abs/2004.07211)",
        stores="outputs",
    )

    memory_class = SlotBuffer
    stores_logits = True
    rehearses_labels = False

    def __init__(self, *args: Any, alpha: float = 0.3, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(alpha=alpha)
        self.alpha = alpha

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy on the incoming batch, mean squared error of the logits of memory."""
        (distilled,) = memory
        assert distilled.logits is not None
        new = self.current_loss(current)
        distances = (self.logits_of(distilled) - distilled.logits).square().mean(dim=1)
        return replace(new, other=new.other + self.alpha * distilled.mean(distances))
