"""ER-LAS: replay with a softmax that knows how often each class came just now."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distributed import gather_shares
from ddn_lightning.errors import check_not_negative, check_positive
from ddn_lightning.samples import Samples, cross_entropy


class ERLAS(ReplayMethod):
    r"""ER-LAS (Huang et al., TMLR 2024, https://arxiv.org/abs/2311.06460).

    Adds to Experience Replay the logarithm of each class's frequency to the logits z in the loss, and in the loss only:

    .. math:: \tilde z_c = z_c + \tau \log n_c,

    with :math:`n_c` the number of samples of class c among the incoming and replayed ones of the last ``window`` steps.
    So what the network learns is not the frequencies of classes, which the stream distorts. A class without a sample is
    left out of the softmax. Needs no task boundaries, and stores these counts. Reading: both batches are forwarded
    apart and their means summed, as for :class:`ER`; the authors concatenate them. A distiller and
    ``old_memory_weight`` use plain logits, as their samples may be of classes without a count.

    Args:
        tau: Weight of the logarithm; 0 is :class:`ER`. Published: 1.
        window: Steps that are counted. Published: 1, and 10 for ImageNet.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts("er_las", "ER-LAS", "[Huang et al. 2024](https://arxiv.org/abs/2311.06460)")

    recent_counts: Tensor  # (window, num_classes), of the last steps

    def __init__(self, *args: Any, tau: float = 1.0, window: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(tau=tau)
        check_positive(window=window)
        self.tau = tau
        self.register_buffer("recent_counts", torch.zeros(window, self.num_classes))

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs."""
        super().grow(num_classes)
        self.recent_counts = resized(self.recent_counts, (len(self.recent_counts), num_classes))

    def current_loss(self, current: Samples) -> ReplayLoss:
        """Adjusted cross-entropy on the incoming batch."""
        logits = self.logits_of(current)
        return ReplayLoss(cross_entropy(logits + self.adjustment(current), current), logits)

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Adjusted cross-entropy on both batches."""
        (replayed,) = memory
        logits, memory_logits = self.logits_of(current), self.logits_of(replayed)
        adjustment = self.adjustment(current, replayed)
        rehearsal = cross_entropy(memory_logits + adjustment, replayed)
        return ReplayLoss(cross_entropy(logits + adjustment, current), logits, rehearsal, memory_logits)

    def adjustment(self, *batches: Samples) -> Tensor:
        """What to add to the logits (num_classes), after counting the labels of these batches over all ranks."""
        labels = torch.cat([gather_shares(batch.labels, batch.total) for batch in batches])
        counts = functional.one_hot(labels, self.num_classes).sum(dim=0, keepdim=True).to(self.recent_counts)
        self.recent_counts = torch.cat([self.recent_counts, counts])[1:]
        added: Tensor = torch.special.xlogy(self.tau, self.recent_counts.sum(dim=0))  # 0 for tau = 0
        return added.clamp_min(torch.finfo(added.dtype).min)
