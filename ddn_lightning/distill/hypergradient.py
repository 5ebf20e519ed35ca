r"""How a loss after one SGD step depends on the data of that step, without a second-order graph.

A *virtual step* takes the network from :math:`\theta` to :math:`\theta' = \theta - \eta \nabla L_{in}(\theta, \phi)`,
where :math:`\phi`, soft labels or pixels, belongs to the data of the inner loss. The gradient of an outer loss at
:math:`\theta'` is then exactly

.. math:: \frac{d L_{out}(\theta')}{d\phi} = -\eta \, \partial_\phi \Big[ \frac{d}{d\varepsilon}
          L_{in}(\theta + \varepsilon v, \phi) \Big]_{\varepsilon = 0}, \qquad v = \nabla L_{out}(\theta'),

the derivative of a directional derivative: one Jacobian-vector product by dual numbers, and an ordinary backward pass
through what depends on :math:`\phi`. Soft labels come in behind the logits, so for them that backward pass does not
touch the network at all. The same identity serves EMLC (https://arxiv.org/abs/2305.12961).

The modes :func:`exact`, :func:`head`, :func:`matching` and :func:`step` differ in the direction :math:`v` and in how
they find the change of the logits along it, the *tangent*. Every gradient is summed over the ranks before it is used,
so several devices give what one does. A network that draws at random, by dropout, is another one at each forward pass;
for it the derivative is one of many.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional

from ddn_lightning.distributed import sum_across_ranks
from ddn_lightning.optimization import gradient_of_sum
from ddn_lightning.samples import Samples, cross_entropy

Parameters = Mapping[str, Tensor]
LossOfLogits = Callable[[Tensor], Tensor]
LossOfParameters = Callable[[Parameters], Tensor]


class FrozenNetwork:
    """A network as a pure function of its parameters: calling it changes nothing in the module.

    The module stays in the mode it is in, so that BatchNorm uses the statistics of the batch; its running statistics
    are updated in copies that are thrown away.

    Args:
        module: The network.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        self.buffers = dict(module.named_buffers())  # looked up once: to walk through a ResNet takes 0.1 ms

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs with these parameters instead of the module's."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        outputs: Tensor = functional_call(self.module, {**parameters, **buffers}, (inputs,))
        return outputs

    def losses(self, parts: Sequence[Samples]) -> list[LossOfParameters]:
        """The mean cross-entropy of each part."""
        return [partial(self._cross_entropy, part) for part in parts]

    def loss(self, parameters: Parameters, parts: Sequence[Samples]) -> Tensor:
        """Sum of the mean cross-entropies of the parts, each forwarded on its own."""
        return torch.stack([loss(parameters) for loss in self.losses(parts)]).sum()

    def _cross_entropy(self, part: Samples, parameters: Parameters) -> Tensor:
        return cross_entropy(self(parameters, part.images), part)


@dataclass(frozen=True)
class VirtualStep:
    """Where a step on the inner loss leads.

    Args:
        inner_gradient: Gradient of the inner loss, along which the step goes.
        outer_gradient: Gradient of the outer loss after the step.
        outer_loss: The outer loss after the step.
    """

    inner_gradient: Parameters
    outer_gradient: Parameters
    outer_loss: Tensor

    @property
    def cosine(self) -> Tensor:
        """How well both gradients agree: what learning the labels is to raise (Theorem 2)."""
        inner, outer = (
            torch.cat([g.flatten() for g in p.values()]) for p in (self.inner_gradient, self.outer_gradient)
        )
        return functional.cosine_similarity(inner, outer, dim=0)


@dataclass(frozen=True)
class LookAhead:
    """What a mode finds out.

    Args:
        logits: Outputs for the inner batch at the current parameters.
        tangent: Their change along the direction of the outer gradient.
        virtual_step: The virtual step, by the modes that take one.
    """

    logits: Tensor
    tangent: Tensor
    virtual_step: VirtualStep | None = None


def exact(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> LookAhead:
    """The virtual step moves all parameters, and the outer gradient is taken where it leads."""
    taken = virtual_step(network, inner, inner_loss, outer, lr)
    with torch.no_grad():
        return LookAhead(*_logits_along(network, inner, taken.outer_gradient), taken)


def head(
    backbone: FrozenNetwork,
    head_only: FrozenNetwork,
    inner: Samples,
    inner_loss: LossOfLogits,
    outer: Sequence[Samples],
    lr: float,
) -> LookAhead:
    """The virtual step moves the last layer only: no gradient ever goes through the backbone."""

    @torch.no_grad()
    def features(samples: Samples) -> Samples:
        return replace(samples, images=backbone(backbone.parameters, samples.images))

    return exact(head_only, features(inner), inner_loss, [features(part) for part in outer], lr)


def matching(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> LookAhead:
    """Theorem 2 read literally: the outer gradient is taken at the current parameters, before any step."""
    _, outer_gradient = _gradient(network.losses(outer), network.parameters)
    with torch.no_grad():
        return LookAhead(*_logits_along(network, inner, outer_gradient))


@torch.no_grad()
def step(network: FrozenNetwork, inner: Samples, last_gradient: Parameters, lr: float) -> LookAhead:
    """The gradient of the classifier's own last step stands in for the outer gradient: forward passes only.

    That step, momentum and weight decay apart, went from ``before`` to the current parameters along minus its gradient,
    so minus the change of the logits over it, divided by the learning rate, is a finite difference of the tangent.
    """
    before = {name: parameter + lr * last_gradient[name] for name, parameter in network.parameters.items()}
    logits = network(network.parameters, inner.images)
    return LookAhead(logits, (network(before, inner.images) - logits) / lr)


def surrogate(look_ahead: LookAhead, inner_loss: LossOfLogits, lr: float) -> Tensor:
    """A value whose gradient is that of the outer loss after the virtual step, for all that the inner loss depends on.

    Args:
        look_ahead: From one of the modes.
        inner_loss: The same inner loss as there, now with soft labels that require a gradient.
        lr: Learning rate of the virtual step.
    """
    logits = look_ahead.logits.detach().requires_grad_()
    # not by dual numbers: torch 2.15 cannot go backward through those of a log-softmax
    (slope,) = torch.autograd.grad(inner_loss(logits), logits, create_graph=True)
    return -lr * (slope * look_ahead.tangent).sum()


def pixel_surrogate(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> Tensor:
    """The same for the pixels of the inner batch, which go through the whole network.

    The directional derivative is taken as the inner product of the inner gradient with the direction, and
    differentiated by a second backward pass: torch 2.15 goes backward through BatchNorm's dual numbers as if its
    statistics did not depend on the pixels, without a word.
    """
    taken = virtual_step(network, replace(inner, images=inner.images.detach()), inner_loss, outer, lr)
    parameters = {name: parameter.detach().requires_grad_() for name, parameter in network.parameters.items()}
    loss = inner_loss(network(parameters, inner.images))
    gradients = torch.autograd.grad(
        loss, list(parameters.values()), create_graph=True, allow_unused=True, materialize_grads=True
    )
    directions = taken.outer_gradient.values()
    return -lr * torch.stack([(g * v).sum() for g, v in zip(gradients, directions, strict=True)]).sum()


def virtual_step(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> VirtualStep:
    """One SGD step on the inner loss, without momentum or weight decay, and the outer loss after it."""
    _, inner_gradient = _gradient([lambda p: inner_loss(network(p, inner.images))], network.parameters)
    moved = {name: parameter - lr * inner_gradient[name] for name, parameter in network.parameters.items()}
    outer_loss, outer_gradient = _gradient(network.losses(outer), moved)
    return VirtualStep(inner_gradient, outer_gradient, outer_loss)


def _logits_along(network: FrozenNetwork, inner: Samples, direction: Parameters) -> tuple[Tensor, Tensor]:
    """Outputs for a batch and their derivative along a direction of the parameters, by dual numbers."""
    with forward_ad.dual_level():
        duals = {
            name: forward_ad.make_dual(parameter, direction[name])  # type: ignore[no-untyped-call]
            for name, parameter in network.parameters.items()
        }
        logits, tangent = forward_ad.unpack_dual(network(duals, inner.images))  # type: ignore[no-untyped-call]
    assert tangent is not None
    return logits, tangent


@torch.enable_grad()
def _gradient(losses: Sequence[LossOfParameters], parameters: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
    """Value and gradient of a sum of losses, over all ranks."""
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    value, gradients = gradient_of_sum([partial(loss, leaves) for loss in losses], list(leaves.values()))
    known = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves.values(), gradients, strict=True)]
    total, *summed = sum_across_ranks([value, *known])
    return total, dict(zip(leaves, summed, strict=True))
