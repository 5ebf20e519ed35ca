"""Nearest class mean: a running mean of features for each class, and nothing that is trained."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distributed import gather_shares
from ddn_lightning.learner import Facts
from ddn_lightning.optimization import evaluating
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples


class NCM(ReplayMethod):
    r"""Nearest class mean (Mensink et al., TPAMI 2013, https://doi.org/10.1109/TPAMI.2013.83).

    Unlike Experience Replay it neither trains nor stores samples: it keeps the mean feature :math:`\mu_c` of each
    class over everything seen, in evaluation mode and not augmented, and predicts the class of the nearest one. That
    is a linear head of weights :math:`\mu_c` and biases :math:`-\mu_c^\top \mu_c / 2`, set before each evaluation.
    Needs a backbone that is trained already, and no task boundaries.

    Args:
        **kwargs: Arguments of :class:`ReplayMethod`; those about memory and optimizer have no effect.
    """

    facts = Facts(
        key="ncm",
        title="NCM",
        reference="[Mensink et al. 2013](https://doi.org/10.1109/TPAMI.2013.83)",
        stores="class means, no sample",
        cost="no gradient at all, no replayed batch",
    )

    memory_draws = 0
    rehearses_labels = False
    lost_in_rounding = "running means"
    class_means: Tensor  # (num_classes, feature_dim); zero for a class without samples
    class_counts: Tensor  # (num_classes)
    cannot_average = "it takes no step"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("class_means", torch.zeros(self.num_classes, self.backbone.feature_dim))
        self.register_buffer("class_counts", torch.zeros(self.num_classes))

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs."""
        super().grow(num_classes)
        self.class_means = resized(self.class_means, (num_classes, self.backbone.feature_dim))
        self.class_counts = resized(self.class_counts, (num_classes,))

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """No loss: the batch only moves the means."""
        return self.current_loss(current)

    def current_loss(self, current: Samples) -> ReplayLoss:
        """No loss: the batch only moves the means."""
        with evaluating(self.backbone):
            features = self.backbone(self.plain_view(current).images).to(self.class_means.dtype)
        labels = gather_shares(current.labels, current.total)
        members = functional.one_hot(labels, self.num_classes).to(features.dtype)  # (batch, num_classes)
        with torch.no_grad():
            self.observe(gather_shares(features, current.total), members)
        logits = torch.zeros(len(current), self.num_classes, device=self.device)
        return ReplayLoss(logits.sum(), logits)

    def observe(self, features: Tensor, members: Tensor) -> None:
        """Move the mean of each class by those of its members (batch, num_classes) in a batch over all ranks."""
        self.class_counts = self.class_counts + members.sum(dim=0)
        new = members.T @ features - members.sum(dim=0)[:, None] * self.class_means
        self.class_means = self.class_means + new / self.class_counts.clamp_min(1)[:, None]

    def projections(self) -> Tensor:
        """The head's weights (num_classes, feature_dim)."""
        return self.class_means

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """No gradients, so that the optimizer's step only counts the batch."""
        return loss.other, [None] * len(parameters)

    @torch.no_grad()
    def before_evaluation(self) -> None:
        """Set the head."""
        weights = self.projections()
        self.head.get_parameter("weight").copy_(weights)
        self.head.get_parameter("bias").copy_(-(weights * self.class_means).sum(dim=1) / 2)

    def end_task(self) -> None:
        """Set the head."""
        self.before_evaluation()

    def class_scores(self, images: Tensor) -> Tensor:
        """The head's outputs; the lowest number for a class without samples."""
        scores: Tensor = self(images)
        return scores.masked_fill(self.class_counts == 0, torch.finfo(scores.dtype).min)
