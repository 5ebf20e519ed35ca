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
they compute the derivative of the logits along it, the *tangent*. All gradients are summed over the ranks, so several
devices give the result of one. With dropout each forward pass is another random network, and so is the derivative.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddn_lightning.optimization import gradient_of_sum
from ddn_lightning.samples import Samples, cross_entropy

Parameters = Mapping[str, Tensor]
LossOfLogits = Callable[[Tensor], Tensor]
LossOfParameters = Callable[[Parameters], Tensor]


class FrozenNetwork:
    """A network as a pure function of its parameters; calls do not change the module.

    The module stays in its mode, so in training BatchNorm uses batch statistics; it updates discarded copies of its
    running statistics.

    Args:
        module: The network.
        moved: The parameters that a step moves; by default all that require a gradient.
    """

    def __init__(self, module: nn.Module, moved: Iterable[Tensor] | None = None) -> None:
        self.module = module
        chosen = set(module.parameters() if moved is None else moved)
        self.parameters = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad and p in chosen}
        self.buffers = dict(module.named_buffers())  # looked up once: walking through a ResNet takes 0.1 ms

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs with the given parameters."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        outputs: Tensor = functional_call(self.module, {**parameters, **buffers}, (inputs,))
        return outputs

    def losses(self, parts: Sequence[Samples]) -> list[LossOfParameters]:
        """The mean cross-entropy of each part."""
        return [partial(self._cross_entropy, part) for part in parts]

    def loss(self, parameters: Parameters, parts: Sequence[Samples]) -> Tensor:
        """Sum of the mean cross-entropies of the parts, each forwarded separately."""
        return torch.stack([loss(parameters) for loss in self.losses(parts)]).sum()

    def _cross_entropy(self, part: Samples, parameters: Parameters) -> Tensor:
        return cross_entropy(self(parameters, part.images), part)


@dataclass(frozen=True)
class VirtualStep:
    """The result of a virtual step on the inner loss.

    Args:
        inner_gradient: Gradient of the inner loss, before the step.
        outer_gradient: Gradient of the outer loss after the step.
        outer_loss: The outer loss after the step.
    """

    inner_gradient: Parameters
    outer_gradient: Parameters
    outer_loss: Tensor

    @property
    def cosine(self) -> Tensor:
        """Cosine between both gradients, which learning the labels should increase (Theorem 2)."""
        inner, outer = (
            torch.cat([g.flatten() for g in p.values()]) for p in (self.inner_gradient, self.outer_gradient)
        )
        return functional.cosine_similarity(inner, outer, dim=0)


@dataclass(frozen=True)
class LookAhead:
    """The result of a mode.

    Args:
        logits: Logits of the inner batch at the current parameters.
        tangent: Their derivative along the outer gradient.
        virtual_step: The virtual step, if the mode takes one.
    """

    logits: Tensor
    tangent: Tensor
    virtual_step: VirtualStep | None = None


def exact(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> LookAhead:
    """A virtual step of all parameters; the outer gradient is taken after it."""
    taken = virtual_step(network, inner, inner_loss, outer, lr)
    with torch.no_grad():
        return LookAhead(*logits_along(network, inner, taken.outer_gradient), taken)


def head(
    backbone: FrozenNetwork,
    head_only: FrozenNetwork,
    inner: Samples,
    inner_loss: LossOfLogits,
    outer: Sequence[Samples],
    lr: float,
) -> LookAhead:
    """A virtual step of the last layer only: no gradient goes through the backbone."""

    @torch.no_grad()
    def features(samples: Samples) -> Samples:
        return replace(samples, images=backbone(backbone.parameters, samples.images))

    return exact(head_only, features(inner), inner_loss, [features(part) for part in outer], lr)


def matching(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> LookAhead:
    """Theorem 2 taken literally: the outer gradient at the current parameters, without a step."""
    _, outer_gradient = _gradient(network.losses(outer), network.parameters)
    with torch.no_grad():
        return LookAhead(*logits_along(network, inner, outer_gradient))


@torch.no_grad()
def step(network: FrozenNetwork, inner: Samples, last_gradient: Parameters, lr: float) -> LookAhead:
    """Uses the gradient of the classifier's last step instead of the outer gradient: forward passes only.

    Without momentum and weight decay that step went from ``before`` to the current parameters, so minus the change of
    the logits divided by the learning rate is a finite difference for the tangent.
    """
    before = {name: parameter + lr * last_gradient[name] for name, parameter in network.parameters.items()}
    logits = network(network.parameters, inner.images)
    return LookAhead(logits, (network(before, inner.images) - logits) / lr)


def surrogate(look_ahead: LookAhead, inner_loss: LossOfLogits, lr: float) -> Tensor:
    """A scalar whose gradient is that of the outer loss after the virtual step, by all inputs of the inner loss.

    Args:
        look_ahead: The result of a mode.
        inner_loss: The same inner loss, with soft labels that require a gradient.
        lr: Learning rate of the virtual step.
    """
    logits = look_ahead.logits.detach().requires_grad_()
    # not by dual numbers: torch 2.15 cannot backpropagate through those of log-softmax
    (slope,) = torch.autograd.grad(inner_loss(logits), logits, create_graph=True)
    return -lr * (slope * look_ahead.tangent).sum()


def pixel_surrogate(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> Tensor:
    """The surrogate for the pixels of the inner batch, which pass through the whole network.

    Differentiates the inner product of the inner gradient and the direction by a second backward pass: torch 2.15
    backpropagates through BatchNorm's dual numbers as if its statistics did not depend on the pixels.
    """
    taken = virtual_step(network, replace(inner, images=inner.images.detach()), inner_loss, outer, lr)
    parameters = {name: parameter.detach().requires_grad_() for name, parameter in network.parameters.items()}
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention can be differentiated only once
        loss = inner_loss(network(parameters, inner.images))
    gradients = torch.autograd.grad(
        loss, list(parameters.values()), create_graph=True, allow_unused=True, materialize_grads=True
    )
    directions = taken.outer_gradient.values()
    return -lr * torch.stack([(g * v).sum() for g, v in zip(gradients, directions, strict=True)]).sum()


def virtual_step(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> VirtualStep:
    """One SGD step on the inner loss, without momentum and weight decay, and the outer loss after it."""
    _, inner_gradient = _gradient([lambda p: inner_loss(network(p, inner.images))], network.parameters)
    stepped = {name: parameter - lr * inner_gradient[name] for name, parameter in network.parameters.items()}
    outer_loss, outer_gradient = _gradient(network.losses(outer), stepped)
    return VirtualStep(inner_gradient, outer_gradient, outer_loss)


def logits_along(network: FrozenNetwork, inner: Samples, direction: Parameters) -> tuple[Tensor, Tensor]:
    """Logits of a batch and their derivative along a direction of the parameters, by dual numbers."""
    # the fused kernels of attention have no forward-mode derivative
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
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
    pairs = zip(leaves.items(), gradients, strict=True)
    return value, {name: torch.zeros_like(leaf) if gradient is None else gradient for (name, leaf), gradient in pairs}
