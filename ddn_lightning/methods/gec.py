"""Gradient-guided epsilon constraint: descend on memory only as far as its loss is too high."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import check_not_negative
from ddn_lightning.methods.a_gem import AGEM

WARM_UP = 5  # steps of each task, published
DELTA = 1e-6  # published


class GEC(AGEM):
    r"""GEC (Lai et al., NeurIPS 2025, https://openreview.net/forum?id=MuhYHqLDZT).

    Where A-GEM forbids every step that raises the loss of earlier tasks, GEC steps along the vector nearest to the
    gradient g of the incoming batch that lowers this loss by as much as it exceeds a tolerance, or raises it by no more
    than it stays below (:func:`constrained`). The tolerance is the mean of the average training losses of the tasks
    before, plus a ``margin``. The first 5 steps of a task are those of Experience Replay.

    Needs task boundaries. Readings: one constraint for all earlier tasks, as in the paper's Section 5, where its
    experiments have one for each task and look one step ahead for its gradient; the loss of a task is the mean over its
    steps; gradients are clipped by ``gradient_clip_val`` only, as the paper has no value.

    Args:
        alpha: How much of the excess a unit step removes. Published: 0.5.
        margin: Tolerated rise of the loss. Published: 0.05.
        **kwargs: Arguments of :class:`ReplayMethod`.
    """

    facts = Facts(
        key="gec",
        title="GEC",
        reference="[Lai et al. 2025](https://openreview.net/forum?id=MuhYHqLDZT)",
        cost="a second gradient",
    )

    task_loss: Tensor  # (2), sum over the steps of the current task, and their number
    past_losses: Tensor  # (2), sum over the tasks before, and their number

    def __init__(self, *args: Any, alpha: float = 0.5, margin: float = 0.05, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(alpha=alpha, margin=margin)
        self.alpha, self.margin = alpha, margin
        self.register_buffer("task_loss", torch.zeros(2))
        self.register_buffer("past_losses", torch.zeros(2))

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient of all terms but the rehearsal, :func:`constrained`."""
        step = [lambda: loss.other, *loss.deferred_terms]
        if (rehearsal := loss.rehearsal) is None:
            value, found = self.gradient_of(step, parameters)
        else:
            memory_loss, reference = self.gradient_of([lambda: rehearsal], parameters, retain_graph=True)
            value, new = self.gradient_of(step, parameters)
            tolerance = (1 + self.margin) * self.past_losses[0] / self.past_losses[1].clamp_min(1)
            is_warm = self.task_loss[1] >= WARM_UP
            found = constrained(new, reference, self.alpha * (memory_loss - tolerance), is_warm)
        self.task_loss = self.task_loss + torch.stack([value.detach(), torch.ones_like(value)]).to(self.task_loss)
        return value, found

    def end_task(self) -> None:
        """Keep the average training loss of the task."""
        average = self.task_loss[0] / self.task_loss[1].clamp_min(1)
        self.past_losses = self.past_losses + torch.stack([average, torch.ones_like(average)])
        self.task_loss = torch.zeros_like(self.task_loss)


def constrained(
    gradients: Sequence[Tensor | None], references: Sequence[Tensor | None], least: Tensor, is_warm: Tensor
) -> list[Tensor | None]:
    r"""The vector v nearest to the gradients g with a product of at least :math:`\phi` with the references r (Eq. 10).

    .. math:: v = g + \lambda r, \qquad \lambda = \max\left(0, \frac{\phi - g^\top r}{r^\top r + \delta}\right)

    Args:
        gradients: Those of the incoming batch.
        references: Those of memory.
        least: The number :math:`\phi`, positive where the loss of memory must fall.
        is_warm: Whether this holds; otherwise :math:`\lambda = 1`.
    """
    pairs = [(g, r) for g, r in zip(gradients, references, strict=True) if g is not None and r is not None]
    product = torch.stack([(g * r).sum() for g, r in pairs]).sum()
    length = torch.stack([r.square().sum() for _, r in pairs]).sum()
    weight = torch.where(is_warm, ((least - product) / (length + DELTA)).clamp_min(0), 1)
    return [
        g if r is None else weight * r if g is None else g + weight * r
        for g, r in zip(gradients, references, strict=True)
    ]
