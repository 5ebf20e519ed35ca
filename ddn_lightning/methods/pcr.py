"""PCR: replay with a contrastive loss on one proxy per class, among the classes of the batch."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distributed import gather_shares
from ddn_lightning.errors import check_positive
from ddn_lightning.networks.cosine_head import CosineHead
from ddn_lightning.samples import Samples


class PCR(ReplayMethod):
    """Proxy-based contrastive replay (Lin et al., CVPR 2023, https://arxiv.org/abs/2304.04408).

    ER in which a sample competes only with the classes in the batch, incoming and replayed, so that new classes do not
    suppress those that are not replayed in this step. Logits are cosines between the feature and the weights of the
    classes, their *proxies*, divided by a temperature, both in training and for predictions, which are limited to the
    classes seen: nothing keeps a sample away from the proxy of a class that has not come yet.

    Needs neither task boundaries nor further storage; a step costs as much as ER's. Readings: each sample has one
    augmented view, as in the other methods here, where the authors' code adds the sample as it is; and the first step,
    with an empty memory, trains on the incoming batch, where their code skips it.

    Args:
        temperature: Divides the cosines. Published: 0.09 for all datasets.
        **kwargs: Arguments of :class:`ReplayMethod`. ``mask_unseen`` is always on.
    """

    facts = Facts("pcr", "PCR", "[Lin et al. 2023](https://arxiv.org/abs/2304.04408)")

    def __init__(self, *args: Any, temperature: float = 0.09, **kwargs: Any) -> None:
        check_positive(temperature=temperature)
        self.temperature = temperature
        super().__init__(*args, **kwargs)
        self.mask_unseen = True

    def build_head(self, feature_dim: int) -> nn.Module:
        """Cosines with the proxies, divided by the temperature."""
        return CosineHead(feature_dim, self.num_classes, scale=1 / self.temperature)

    def current_loss(self, current: Samples) -> ReplayLoss:
        """The loss among the classes of the incoming batch."""
        logits = self.logits_of(current)
        return ReplayLoss(current.mean(proxy_losses(logits, current.labels, self._counts(current))), logits)

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The mean loss over both batches, among the classes of both."""
        (replayed,) = memory
        counts = self._counts(current) + self._counts(replayed)
        total = current.total + replayed.total
        logits, memory_logits = self.logits_of(current), self.logits_of(replayed)
        new = proxy_losses(logits, current.labels, counts).sum() / total
        rehearsal = proxy_losses(memory_logits, replayed.labels, counts).sum() / total
        return ReplayLoss(new, logits, rehearsal, memory_logits, replayed.total / total)

    def _counts(self, samples: Samples) -> Tensor:
        """Number of samples of each class over all ranks (num_classes)."""
        return functional.one_hot(gather_shares(samples.labels, samples.total), self.num_classes).sum(dim=0)


def proxy_losses(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    r"""The loss of each sample: its own proxy against those of all samples in the batch.

    .. math:: -\log \frac{\exp(z_{y})}{\sum_{j \in \text{batch}} \exp(z_{y_j})},

    where a class of the batch counts once for each of its samples.

    Args:
        logits: Cosines with the proxies, divided by the temperature (samples, num_classes).
        labels: Class of each sample.
        counts: Number of samples of each class in the batch (num_classes).
    """
    own = logits.gather(1, labels[:, None]).squeeze(1)
    return (logits + counts.to(logits.dtype).log()).logsumexp(dim=1) - own
