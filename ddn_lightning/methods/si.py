"""Synaptic Intelligence: replay with a penalty on changing parameters that mattered."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import check_not_negative, check_positive
from ddn_lightning.methods.er import ER


class SI(ER):
    r"""SI (Zenke et al., ICML 2017, https://arxiv.org/abs/1703.04200), on ER.

    Adds to Experience Replay a penalty on changes of each parameter since the last task, by how much its path has
    lowered the loss in earlier tasks:

    .. math:: c \sum_k \Omega_k (\theta_k - \theta_k^*)^2, \qquad \Omega_k = \max\Big(0, \sum_{\text{tasks}}
              \frac{-\sum_{\text{steps}} g_k\, \delta_k}{\Delta_k^2 + \xi}\Big),

    with g the gradient without penalty, :math:`\delta` the change by a step and :math:`\Delta` that by a task.

    Needs task boundaries; stores three numbers per parameter. BatchNorm statistics have no penalty. The paper has no
    replay; negative importances are cut off after each task, as in the authors' code.

    Args:
        penalty: The c of the penalty. Mammoth's, without replay: 0.5. With a small ``damping`` a large one diverges.
        damping: The :math:`\xi`. Mammoth's: 1. The authors', for Adam and a ``penalty`` of 0.1: 0.001 on CIFAR.
        **kwargs: Arguments of :class:`ER`.
    """

    facts = Facts(
        key="si",
        title="SI",
        reference="[Zenke et al. 2017](https://arxiv.org/abs/1703.04200)",
        stores="3 numbers per parameter",
        cost="a few operations per parameter",
    )

    def __init__(self, *args: Any, penalty: float = 0.5, damping: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(penalty=penalty)
        check_positive(damping=damping)
        self.penalty = penalty
        self.damping = damping
        self.anchors, self.gains, self.importances = (
            nn.ParameterList(nn.Parameter(torch.zeros_like(p), requires_grad=False) for p in self.network.parameters())
            for _ in range(3)
        )
        self._taken: dict[Tensor, tuple[Tensor, Tensor]] = {}  # in a step: each parameter before it, its gradient

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs; new ones have no importance."""
        super().grow(num_classes)
        for numbers in (self.anchors, self.gains, self.importances):
            for values, parameter in zip(numbers, self.network.parameters(), strict=True):
                values.data = resized(values, parameter.shape)

    def begin_task(self) -> None:
        """Anchor the parameters where they are."""
        for anchor, parameter in zip(self.anchors, self.network.parameters(), strict=True):
            anchor.copy_(parameter.detach())

    @torch.no_grad()
    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of the loss with the penalty."""
        with torch.enable_grad():
            value, gradients = super().gradients(loss, parameters)
        found = dict(zip(parameters, gradients, strict=True))
        for parameter, anchor, importance in zip(
            self.network.parameters(), self.anchors, self.importances, strict=True
        ):
            if (gradient := found.get(parameter)) is not None:
                self._taken[parameter] = parameter.clone(), gradient
                change = parameter - anchor
                found[parameter] = gradient + 2 * self.penalty * importance * change
                value = value + self.penalty * (importance * change.square()).sum()
        return value, list(found.values())

    @torch.no_grad()
    def after_step(self) -> None:
        """Add what the step has gained by each parameter."""
        for parameter, gain in zip(self.network.parameters(), self.gains, strict=True):
            if parameter in self._taken:
                before, gradient = self._taken.pop(parameter)
                gain -= gradient * (parameter - before)

    @torch.no_grad()
    def end_task(self) -> None:
        """Add the gains of the task to the importances."""
        numbers = zip(self.network.parameters(), self.anchors, self.gains, self.importances, strict=True)
        for parameter, anchor, gain, importance in numbers:
            importance += gain / ((parameter - anchor).square() + self.damping)
            importance.clamp_min_(0)
            gain.zero_()
