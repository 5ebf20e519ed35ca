"""MKD: replay with distillation from a moving average of the network."""

import copy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from ddn_lightning.core.growth import grow_head
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.errors import check_fraction, check_not_negative, check_positive
from ddn_lightning.learner import Facts
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy


class MKD(ReplayMethod):
    r"""Momentum knowledge distillation (Michel et al., ICML 2024, https://arxiv.org/abs/2309.02870), on ER.

    ER whose outputs, on the incoming and the replayed batch, are kept close to those of a *teacher*, a moving average
    of the network that is updated after each step:

    .. math:: L = L_{ER} + \lambda T^2\, KL(p_{teacher} \| p), \qquad \theta_{teacher} \leftarrow (1 - \alpha)\,
              \theta_{teacher} + \alpha\, \theta

    The teacher sees the augmented view; the student is compared on that view and on the image as it is, half each.
    The prediction is that of the average of both networks' weights, with the student's BatchNorm statistics.

    Needs no task boundaries; stores the teacher; a step costs 2.4 of ER's. Readings: the teacher starts as a copy of
    the network, where the authors' code starts it near zero; both batches are forwarded separately and their means
    summed, as in ER here; and a step without replay does not distil.

    Args:
        distillation_weight: The :math:`\lambda` of the loss. Published: 5.5 on ER.
        teacher_rate: The :math:`\alpha` of the moving average. Published: 0.01.
        temperature: The T of the distillation. Published: 4.
        evaluate: The network that predicts.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts(
        key="mkd",
        title="MKD",
        reference="[Michel et al. 2024](https://arxiv.org/abs/2309.02870)",
        stores="an averaged network",
        cost="on each batch 1 forward pass of the average and 1 more view",
    )

    lost_in_rounding = "moving averages"
    cannot_average = "it has averages of its own, see evaluate"

    def __init__(
        self,
        *args: Any,
        distillation_weight: float = 5.5,
        teacher_rate: float = 0.01,
        temperature: float = 4.0,
        evaluate: Literal["average", "student", "teacher"] = "average",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(distillation_weight=distillation_weight)
        check_fraction(teacher_rate=teacher_rate)
        check_positive(temperature=temperature)
        self.distillation_weight = distillation_weight
        self.teacher_rate = teacher_rate
        self.temperature = temperature
        self.evaluate = evaluate
        # in training mode with the method: it updates BatchNorm statistics of its own
        self.teacher = copy.deepcopy(self.network).requires_grad_(False)

    @property
    def backbones(self) -> list[nn.Module]:
        """The backbone and the teacher's."""
        return [self.backbone, self.teacher.get_submodule("backbone")]

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy and distance to the teacher, on both batches."""
        (replayed,) = memory
        new = self.current_loss(current)
        logits = self.logits_of(replayed)
        distance = self._distance(current, new.current_logits) + self._distance(replayed, logits)
        other = new.other + self.distillation_weight * distance
        return replace(new, other=other, rehearsal=cross_entropy(logits, replayed), memory_logits=logits)

    def _distance(self, samples: Samples, logits: Tensor) -> Tensor:
        """The divergence from the teacher on both views, each by half."""
        with torch.no_grad(), self.tracking(samples):
            targets = self.teacher(samples.images)
        plain = self.logits_of(self.plain_view(samples))
        divergences = [distillation_losses(student, targets, self.temperature) for student in (logits, plain)]
        return samples.mean(divergences[0] + divergences[1]) / 2

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the teacher towards the network."""
        torch._foreach_lerp_(list(self.teacher.parameters()), list(self.network.parameters()), self.teacher_rate)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs, also of the teacher."""
        super().grow(num_classes)
        grow_head(self.teacher.get_submodule("head"), self)

    def class_scores(self, images: Tensor) -> Tensor:
        """Scores of the network chosen by ``evaluate``."""
        if self.evaluate == "teacher":
            return self.masked(self.teacher(images))
        if self.evaluate == "student":
            return super().class_scores(images)
        parameters = self.network.named_parameters()
        average = {name: (parameter + self.teacher.get_parameter(name)) / 2 for name, parameter in parameters}
        return self.masked(functional_call(self.network, average, (images,)))


def distillation_losses(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """The divergence of each sample's prediction from the target's, both softened, times the temperature squared.

    Args:
        logits: Logits of the student (samples, num_classes).
        targets: Logits of the teacher.
        temperature: Divides the logits.
    """
    student, teacher = ((part / temperature).log_softmax(dim=1) for part in (logits, targets))
    return temperature**2 * functional.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)
