"""Cheaper gradients for Data-Distill-Net that were measured and left the product; rows of ``measured.csv`` name them.

``lookahead=step`` of a recorded command is :class:`StepLookAhead`, ``matching`` and ``head`` alike. Each is run by its
import path: ``ddn fit ... --model.distiller study.look_aheads.StepLookAhead``.
"""

from functools import partial

import torch

from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.bias_adaptor import look_ahead_of_head
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.distill.hypergradient import LookAhead
from ddn_lightning.distill.learner import Learner
from ddn_lightning.samples import Samples


class HeadLookAhead(DataDistillNet):
    """A virtual step of the last layer only."""

    def look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        """No gradient goes through the backbone."""
        return look_ahead_of_head(self, method, inner, outer)


class MatchingLookAhead(DataDistillNet):
    """Theorem 2 taken literally: the outer gradient at the current parameters, without a step."""

    def look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        """A virtual step of length zero."""
        network = self.frozen(method.network, method.moved_parameters)
        loss = partial(self.learned_inner_loss, inner, learn=False)
        taken = hypergradient.exact(network, inner, loss, outer, lr=0.0)
        return LookAhead(taken.logits, taken.tangent)


class StepLookAhead(DataDistillNet):
    """The gradient of the classifier's last step instead of the outer gradient: forward passes only.

    Without momentum and weight decay that step went from ``before`` to the current parameters, so minus the change of
    the logits divided by the learning rate is a finite difference for the tangent.
    """

    @torch.no_grad()
    def look_ahead(self, method: Learner, inner: Samples, outer: list[Samples]) -> LookAhead:
        """Logits after and before the last step."""
        network, lr = self.frozen(method.network, method.moved_parameters), method.current_lr
        last = {n: p.grad for n, p in method.network.named_parameters() if p.grad is not None}
        before = {name: p + lr * last[name] if name in last else p for name, p in network.parameters.items()}
        logits = network(network.parameters, inner.images)
        return LookAhead(logits, (network(before, inner.images) - logits) / lr)
