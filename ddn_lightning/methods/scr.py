"""SCR: replay with a supervised contrastive loss, and nearest-mean classification."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distributed import gather_shares, gather_with_gradient, part_of_rank
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.memory.gradient_selection import GradientSelection
from ddn_lightning.memory.loss_aware_reservoir import LossAwareReservoir
from ddn_lightning.methods.nearest_mean import NearestMean
from ddn_lightning.samples import Samples, concatenate


class SCR(NearestMean, ReplayMethod):
    """Supervised contrastive replay (Mai et al., CVPR workshops 2021, https://arxiv.org/abs/2103.13885).

    ER without a classifier: projections of samples of one class are drawn together and others pushed apart, among the
    incoming batch and a draw from memory, each image both as it is and augmented. The prediction is the class whose
    stored samples have the nearest mean feature, both normalised. The head is the projection, used in training only;
    the means are measured before each evaluation and at the end of a task and of training.

    Needs neither task boundaries nor further storage; a step costs twice ER's. It compares the samples of a step, and
    the published ``replay_batch_size`` is 100. Readings: the augmentation is that of the data, where the authors' also
    changes colours; the first step, with an empty memory, contrasts the incoming batch, where their code skips it; a
    class without stored samples is not predicted; and their pass over the memory after each task, with a tenth of the
    gradient, is left out.

    Args:
        temperature: Divides the cosines of projections. Published: 0.1.
        projection_dim: Size of the projections. Published: 128.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts(
        key="scr",
        title="SCR",
        reference="[Mai et al. 2021](https://arxiv.org/abs/2103.13885)",
        stores="class means",
        cost="2 views of each image; a pass over the memory before an evaluation",
    )

    rehearses_labels = False

    def __init__(self, *args: Any, temperature: float = 0.1, projection_dim: int = 128, **kwargs: Any) -> None:
        check_positive(temperature=temperature, projection_dim=projection_dim)
        self.temperature = temperature
        self.projection_dim = projection_dim
        super().__init__(*args, normalise=True, **kwargs)
        if self.batch_norm.running_statistics == "memory":
            raise ConfigurationError("SCR cannot take running_statistics=memory: it forwards both batches together")
        if isinstance(self.memory, GradientSelection | LossAwareReservoir):
            raise ConfigurationError(f"SCR cannot take {type(self.memory).__name__}: its head gives no class scores")

    def build_head(self, feature_dim: int) -> nn.Module:
        """The projection: a hidden layer as large as the features."""
        hidden = nn.Linear(feature_dim, feature_dim)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(feature_dim, self.projection_dim))

    def current_loss(self, current: Samples) -> ReplayLoss:
        """The contrastive loss of the incoming batch."""
        return self.loss(current)

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The contrastive loss of all batches in two views, over all ranks."""
        parts = [current, *memory]
        both = concatenate(parts)
        plain, augmented = (functional.normalize(self(view.images)) for view in (self.plain_view(both), both))
        sizes = [len(part) for part in parts]
        shares = zip([*torch.split(plain, sizes), *torch.split(augmented, sizes)], 2 * parts, strict=True)
        projections = torch.cat([gather_with_gradient(share, part.total) for share, part in shares])
        labels = torch.cat([gather_shares(part.labels, part.total) for part in parts])
        value = contrastive_loss(projections, labels.repeat(2), self.temperature)
        return ReplayLoss(part_of_rank(value), augmented[: len(current)])

    def before_evaluation(self) -> None:
        """Measure the class means."""
        if len(self.memory):
            with torch.inference_mode(False):
                self.measure_means()

    def end_task(self) -> None:
        """Measure the class means."""
        self.measure_means()

    def on_train_end(self) -> None:
        """Measure the class means of a run that was stopped within a task."""
        self.before_evaluation()
        super().on_train_end()

    def class_scores(self, images: Tensor) -> Tensor:
        """Negative squared distances to the class means; the lowest score for classes without a stored sample."""
        scores = super().class_scores(images)
        return scores.masked_fill(~self.class_means.any(dim=1), torch.finfo(scores.dtype).min)


def contrastive_loss(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    r"""The supervised contrastive loss (Khosla et al. 2020, https://arxiv.org/abs/2004.11362), in its form L_out.

    .. math:: -\frac1N \sum_i \frac{1}{|P(i)|} \sum_{p \in P(i)} \log \frac{\exp(z_i \cdot z_p / \tau)}
              {\sum_{a \ne i} \exp(z_i \cdot z_a / \tau)},

    with P(i) the other samples of i's class. Each sample must have another of its class, such as another view.

    Args:
        projections: Projections z of length one (samples, projection_dim).
        labels: Class of each sample.
        temperature: The :math:`\tau`.
    """
    with torch.autocast(projections.device.type, enabled=False):
        similarities = projections @ projections.T / temperature
    is_self = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    is_positive = (labels[:, None] == labels) & ~is_self
    totals = similarities.masked_fill(is_self, -torch.inf).logsumexp(dim=1, keepdim=True)
    return ((totals - similarities) * is_positive).sum(dim=1).div(is_positive.sum(dim=1)).mean()
