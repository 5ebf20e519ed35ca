"""iCaRL: nearest-mean-of-exemplars classification and distillation."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.methods.exemplar_method import ExemplarMethod
from ddn_lightning.methods.nearest_mean import NearestMean
from ddn_lightning.samples import Samples


class ICaRL(NearestMean, ExemplarMethod):
    r"""iCaRL (Rebuffi et al., CVPR 2017, https://arxiv.org/abs/1611.07725).

    Each output is a binary classifier, trained on the labels for new classes and on the previous network's outputs for
    old ones, with :math:`\sigma` the sigmoid and :math:`\ell` the binary cross-entropy:

    .. math:: L = \sum_{c\, new} \ell(f_c(x), [y = c]) + \sum_{c\, old} \ell(f_c(x), \sigma(f^{old}_c(x)))

    Exemplars are chosen by herding, and the prediction is the class whose exemplars have the nearest mean
    feature. Within a task, before its exemplars are chosen, the outputs predict. Unlike Experience Replay it trains on
    exemplars as data; needs task boundaries and tasks without common classes, and stores the previous network.

    The loss is a mean over the outputs, most of which matter little for a sample, and needs a larger ``lr`` than the
    DDN paper's 0.03, which the paper's tables keep: Mammoth has 0.1 for CIFAR-10, 0.3 for CIFAR-100 (``tuned.csv``).

    Args:
        lr: Learning rate, by default Mammoth's for CIFAR-10.
        **kwargs: Arguments of :class:`NearestMean` and :class:`ExemplarMethod`.
    """

    facts = Facts(
        key="icarl",
        title="iCaRL",
        reference="[Rebuffi et al. 2017](https://arxiv.org/abs/1611.07725)",
        stores="the last network, class means",
        cost="no replayed batch, 1 forward pass of the last network; herding at a task's end",
    )

    def __init__(self, *args: Any, lr: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, lr=lr, **kwargs)

    @property
    def has_means(self) -> bool:
        """Whether the task has ended: then its exemplars are chosen."""
        return self.is_between_tasks

    def current_loss(self, current: Samples) -> ReplayLoss:
        """Binary cross-entropy, averaged over the classes seen."""
        logits = self(current.images)
        targets = functional.one_hot(current.labels, self.num_classes).to(logits.dtype)
        if self.is_distilling:
            targets = torch.where(self.is_old_class, self.old_outputs(current.images).sigmoid(), targets)
        losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        losses = (losses * self.is_seen_class).sum(dim=1) / self.is_seen_class.sum()
        return ReplayLoss(current.mean(losses), logits)

    def end_task(self) -> None:
        """Choose exemplars and compute the means of all classes."""
        super().end_task()
        self.measure_means()

    def class_scores(self, images: Tensor) -> Tensor:
        """Negative squared distances to the class means; within a task, the outputs."""
        return super().class_scores(images) if self.is_between_tasks else self.masked(self(images))
