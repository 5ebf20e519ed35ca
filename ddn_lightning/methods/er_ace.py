"""ER-ACE: replay with asymmetric cross-entropy, in which new samples do not affect old classes."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distributed import gather_shares
from ddn_lightning.networks.cosine_head import CosineHead
from ddn_lightning.samples import Samples, cross_entropy


class ERACE(ReplayMethod):
    """ER-ACE (Caccia et al., ICLR 2022, https://arxiv.org/abs/2104.05025).

    Adds to Experience Replay that, from the second task on, the incoming batch is classified only among its own classes
    and those not yet seen, so that it does not suppress old classes; memory is classified among all. The first task has
    neither mask nor replay, as in the code that the DDN paper builds on, which is all that needs task boundaries.
    Stores nothing further.

    Args:
        head_form: ``linear``, as in the DDN paper, or ``cosine``, scaled by 10, as in the original.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts("er_ace", "ER-ACE", "[Caccia et al. 2022](https://arxiv.org/abs/2104.05025)")

    replay_from_task = 2
    is_met_class: Tensor  # (num_classes), classes of all incoming batches so far

    def __init__(self, *args: Any, head_form: Literal["linear", "cosine"] = "linear", **kwargs: Any) -> None:
        self.head_form = head_form
        super().__init__(*args, **kwargs)
        self.register_buffer("is_met_class", torch.zeros(self.num_classes, dtype=torch.bool))

    def build_head(self, feature_dim: int) -> nn.Module:
        """A linear or cosine head."""
        if self.head_form == "cosine":
            return CosineHead(feature_dim, self.num_classes, scale=10.0)
        return super().build_head(feature_dim)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs."""
        super().grow(num_classes)
        self.is_met_class = resized(self.is_met_class, (num_classes,))

    def current_loss(self, current: Samples) -> ReplayLoss:
        """Cross-entropy over all classes, in a step without replay."""
        self._register_classes(current)
        return super().current_loss(current)

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Masked cross-entropy on the incoming batch, cross-entropy on memory."""
        (replayed,) = memory
        is_absent = self.is_met_class & ~self._register_classes(current)
        logits = self.logits_of(current)
        memory_logits = self.logits_of(replayed)
        masked = logits.masked_fill(is_absent, torch.finfo(logits.dtype).min)
        rehearsal = cross_entropy(memory_logits, replayed)
        return ReplayLoss(cross_entropy(masked, current), logits, rehearsal, memory_logits)

    def _register_classes(self, current: Samples) -> Tensor:
        """Add the classes of the batch over all ranks to those met; returns the classes of the batch."""
        labels = gather_shares(current.labels, current.total)
        is_present = functional.one_hot(labels, self.num_classes).any(dim=0)
        self.is_met_class = self.is_met_class | is_present
        return is_present
