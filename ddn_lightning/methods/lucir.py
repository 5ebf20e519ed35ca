"""LUCIR: a cosine classifier with feature distillation and margin ranking, rebalanced at each task's end."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.callbacks.task_progress_bar import track
from ddn_lightning.distributed import local_share, sum_across_ranks
from ddn_lightning.errors import check_not_negative, check_positive
from ddn_lightning.learner import Facts
from ddn_lightning.methods.exemplar_method import ExemplarMethod
from ddn_lightning.networks.classifier import widened
from ddn_lightning.networks.cosine_head import CosineHead
from ddn_lightning.optimization import descend, evaluating
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy

FINE_TUNING = "fine-tuning"


class LUCIR(ExemplarMethod):
    """LUCIR (Hou et al., CVPR 2019, https://doi.org/10.1109/CVPR.2019.00092).

    Logits are cosines times a learned scale. From the second task on, the directions of features are distilled from the
    previous network, and samples of old classes are separated from the nearest new classes by a margin. Head weights of
    old classes are frozen; those of new classes start as the mean direction of their features, in one pass over the
    task's data. At a task's end exemplars are chosen by herding, and the head is fine-tuned on them with the backbone
    in evaluation mode. Unlike Experience Replay it trains on exemplars as data; needs task boundaries and tasks
    without common classes, and stores the previous network. Reading: fine-tuning has the cross-entropy alone and moves
    all head weights, as the original's for ImageNet; the code that the DDN paper builds on keeps the old ones, takes
    the whole loss, also after the first task, and lowers its learning rate.

    Args:
        less_forget_weight: Weight of one minus the cosine between new and old features, further multiplied by the
            square root of the ratio of old to new classes.
        ranking_weight: Weight of the margin ranking loss.
        margin: Margin between the cosines of a sample's own class and of a new class.
        hardest_classes: Number of nearest new classes in the ranking loss.
        fine_tuning_epochs: Epochs of fine-tuning on the exemplars, from the second task on.
        fine_tuning_lr: Learning rate of fine-tuning.
        **kwargs: Arguments of :class:`ExemplarMethod`.
    """

    facts = Facts(
        key="lucir",
        title="LUCIR",
        reference="[Hou et al. 2019](https://doi.org/10.1109/CVPR.2019.00092)",
        stores="the last network",
        cost="as iCaRL; imprinting, herding and fine-tuning of the head between tasks",
    )

    head: CosineHead
    cannot_average = "it fine-tunes the network at a task's end"

    def __init__(
        self,
        *args: Any,
        less_forget_weight: float = 5.0,
        ranking_weight: float = 1.0,
        margin: float = 0.5,
        hardest_classes: int = 2,
        fine_tuning_epochs: int = 20,
        fine_tuning_lr: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(
            less_forget_weight=less_forget_weight,
            ranking_weight=ranking_weight,
            margin=margin,
            fine_tuning_epochs=fine_tuning_epochs,
        )
        check_positive(hardest_classes=hardest_classes, fine_tuning_lr=fine_tuning_lr)
        self.less_forget_weight = less_forget_weight
        self.ranking_weight = ranking_weight
        self.margin = margin
        self.hardest_classes = hardest_classes
        self.fine_tuning_epochs = fine_tuning_epochs
        self.fine_tuning_lr = fine_tuning_lr

    def build_head(self, feature_dim: int) -> nn.Module:
        """Cosines times a learned scale that starts at 1."""
        return CosineHead(feature_dim, self.num_classes, scale=1.0, learn_scale=True)

    def current_loss(self, current: Samples) -> ReplayLoss:
        """Cross-entropy and, from the second task on, feature distillation and margin ranking."""
        features = self.backbone(current.images)
        cosines = widened(self.head.cosines(features, is_frozen=self.is_old_class))
        logits = self.head.scale * cosines
        loss = cross_entropy(self.masked(logits), current)
        if self.is_distilling:
            loss = loss + self.adaptive_weight * self._feature_distillation(features, current)
            loss = loss + self.ranking_weight * self._ranking(cosines, current)
        return ReplayLoss(loss, logits)

    @property
    def adaptive_weight(self) -> Tensor:
        """The weight of feature distillation, which grows with the ratio of old to new classes."""
        old = self.is_old_class.sum()
        return self.less_forget_weight * (old / (self.is_seen_class.sum() - old)).sqrt()

    def _feature_distillation(self, features: Tensor, current: Samples) -> Tensor:
        old_backbone = self.old_network.get_submodule("backbone")
        with evaluating(old_backbone):
            old_features = old_backbone(current.images)
        return current.mean(1 - functional.cosine_similarity(widened(features), widened(old_features)))

    def _ranking(self, cosines: Tensor, current: Samples) -> Tensor:
        """Mean hinge loss over the samples of old classes in the global batch and their nearest new classes."""
        is_new = self.is_seen_class & ~self.is_old_class  # without future classes
        number = min(self.hardest_classes, int(self.sequence.is_class_of_task[self.task].sum()))
        nearest = cosines.masked_fill(~is_new, torch.finfo(cosines.dtype).min).topk(number, dim=1).values
        own = cosines.gather(1, current.labels[:, None])
        losses = functional.relu(self.margin - own + nearest).mean(dim=1)
        is_old = self.is_old_class[current.labels]
        (count,) = sum_across_ranks([is_old.sum().to(losses.dtype)])
        return (losses * is_old).sum() / count.clamp_min(1)

    def begin_task(self) -> None:
        """Initialise the head weights of new classes."""
        super().begin_task()
        if self.is_distilling:
            self._imprint(self.sequence.training_samples(self.task))

    @torch.no_grad()
    def _imprint(self, samples: Samples) -> None:
        """Set the weight of each new class to the mean direction of its features, with the norm of old weights.

        A class without samples keeps its weight.
        """
        directions = functional.normalize(self.features_of(samples))
        labels = samples.labels.to(directions.device)
        length = self.head.weight[self.is_old_class].norm(dim=1).mean()
        for label in torch.unique(labels).tolist():
            self.head.weight[label] = length * functional.normalize(directions[labels == label].mean(dim=0), dim=0)

    def end_task(self) -> None:
        """Choose exemplars, fine-tune the head on them, and keep the network."""
        self.choose_exemplars()
        if self.is_distilling:
            self._fine_tune()
        self.keep_network()

    def _fine_tune(self) -> None:
        generator = self.streams[FINE_TUNING]
        optimizer = torch.optim.SGD(
            self.head.parameters(),
            self.fine_tuning_lr,
            momentum=self.optimization.momentum,
            weight_decay=self.optimization.weight_decay,
        )
        exemplars = self.exemplars.samples
        for _ in track(self.trainer, self.fine_tuning_epochs, "fine-tuning the head"):
            for batch in torch.split(torch.randperm(len(exemplars), generator=generator), self.replay_batch_size):
                share = exemplars[local_share(batch)].to(self.device)
                share.global_size = len(batch)
                share = self.augment(share, generator)
                with self.trainer.precision_plugin.train_step_context():
                    with evaluating(self.backbone):
                        features = self.backbone(share.images)
                    value = cross_entropy(self.masked(widened(self.head(features))), share)
                loss = descend(value, optimizer)
                self.note_loss(loss, "the loss of fine-tuning", fine_tuning_lr=self.fine_tuning_lr)
