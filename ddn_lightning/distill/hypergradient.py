r"""How a loss after one SGD step depends on the data of that step, without a second-order graph.

A *virtual step* takes the network from :math:`\theta` to :math:`\theta' = \theta - \eta \nabla L_{in}(\theta, \phi)`,
where :math:`\phi`, soft labels or pixels, belongs to the data of the inner loss. The gradient of an outer loss at
:math:`\theta'` is then exactly

.. math:: \frac{d L_{out}(\theta')}{d\phi} = -\eta \, \partial_\phi \Big[ \frac{d}{d\varepsilon}
          L_{in}(\theta + \varepsilon v, \phi) \Big]_{\varepsilon = 0}, \qquad v = \nabla L_{out}(\theta').

Soft labels enter behind the logits. For them the bracket needs only the *tangent*: the derivative of the inner logits
along :math:`v`. The logits at :math:`\theta` are known from the step, so the tangent costs one forward pass at
:math:`\theta + \varepsilon v` (:func:`tangent`). The same identity serves EMLC (https://arxiv.org/abs/2305.12961).

All gradients are summed over the ranks, so several devices give the result of one. With dropout both passes of the
inner batch have the same masks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddn_lightning.networks.batch_statistics import frozen_statistics, layers_with_statistics
from ddn_lightning.networks.gradients import gradient_of_sum
from ddn_lightning.samples import Samples, cross_entropy

Parameters = Mapping[str, Tensor]
LossOfLogits = Callable[[Tensor], Tensor]
LossOfParameters = Callable[[Parameters], Tensor]
RELATIVE_STEPS = {torch.float32: 2e-5, torch.float64: 1e-9}  # to |theta|: above rounding, below curvature


class FrozenNetwork:
    """A network as a pure function of its parameters; calls do not change the module.

    The module stays in its mode, so in training BatchNorm uses batch statistics, but its running ones do not move.

    Args:
        module: The network.
        moved: The parameters that a step moves; by default all that require a gradient.
    """

    def __init__(self, module: nn.Module, moved: Iterable[Tensor] | None = None) -> None:
        self.module = module
        chosen = set(module.parameters() if moved is None else moved)
        self.parameters = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad and p in chosen}
        frozen = tuple(f"{name}." if name else "" for name in layers_with_statistics(module))
        # of other layers, which may change their buffers; those of BatchNorm are frozen at no cost
        self.buffers = {n: b for n, b in module.named_buffers() if not n.startswith(frozen)}

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Outputs with the given parameters."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        with frozen_statistics(self.module):
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
class ForwardPass:
    """The logits of a batch, and what repeating the pass along a direction needs.

    Args:
        logits: The logits, without a graph.
        random_state: The random state before the pass, which gives the masks of dropout.
    """

    logits: Tensor
    random_state: Tensor


@dataclass(frozen=True)
class VirtualStep:
    """The result of a virtual step on the inner loss.

    Args:
        inner: The forward pass of the inner batch, before the step.
        inner_gradient: Gradient of the inner loss, before the step.
        outer_gradient: Gradient of the outer loss after the step.
        outer_loss: The outer loss after the step.
    """

    inner: ForwardPass
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
    """What the gradient of soft labels is made of.

    Args:
        logits: Logits of the inner batch at the current parameters.
        tangent: Their derivative along the outer gradient.
        virtual_step: The virtual step, if one was taken.
    """

    logits: Tensor
    tangent: Tensor
    virtual_step: VirtualStep | None = None


def exact(
    network: FrozenNetwork, inner: Samples, inner_loss: LossOfLogits, outer: Sequence[Samples], lr: float
) -> LookAhead:
    """A virtual step of all parameters; the outer gradient is taken after it."""
    taken = virtual_step(network, inner, inner_loss, outer, lr)
    found = tangent(network, network.parameters, inner.images, taken.outer_gradient, taken.inner)
    return LookAhead(taken.inner.logits, found, taken)


def surrogate(look_ahead: LookAhead, inner_loss: LossOfLogits, lr: float) -> Tensor:
    """A scalar whose gradient is that of the outer loss after the virtual step, by all inputs of the inner loss.

    Args:
        look_ahead: The logits of the inner batch and their tangent.
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
    passes: list[ForwardPass] = []

    def loss(parameters: Parameters) -> Tensor:
        state = random_state(inner.images.device)
        with full_float32():
            logits = network(parameters, inner.images)
        passes.append(ForwardPass(logits.detach(), state))
        return inner_loss(logits)

    _, inner_gradient = _gradient([loss], network.parameters)
    steps = torch._foreach_mul(list(inner_gradient.values()), lr)
    stepped = torch._foreach_sub(list(network.parameters.values()), steps)
    after = dict(zip(network.parameters, stepped, strict=True))
    outer_loss, outer_gradient = _gradient(network.losses(outer), after)
    return VirtualStep(passes[0], inner_gradient, outer_gradient, outer_loss)


@torch.no_grad()
def tangent(
    network: FrozenNetwork, parameters: Parameters, images: Tensor, direction: Parameters, known: ForwardPass
) -> Tensor:
    """The derivative of the logits of a batch along a direction of the parameters.

    In single and double precision a forward difference from the known logits, by one pass at theta + e v with
    e = :data:`RELATIVE_STEPS` |theta| / |v|. That step is below the rounding of bfloat16 and TF32. Where autocast
    computes in less, the derivative is therefore taken by dual numbers, at the cost of three passes.

    Args:
        network: The network.
        parameters: Its parameters at theta.
        images: The batch.
        direction: v, for each of the parameters.
        known: The forward pass of the batch at theta, within :func:`full_float32` unless autocast is on.
    """
    with repeated(known.random_state, images.device):
        kind = images.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return by_dual_numbers(network, parameters, images, direction)
        theta, v = list(parameters.values()), [direction[name] for name in parameters]
        relative = RELATIVE_STEPS.get(known.logits.dtype, RELATIVE_STEPS[torch.float32])
        e = relative * _norm(theta) / _norm(v).clamp_min(torch.finfo(theta[0].dtype).tiny)
        shifted = torch._foreach_add(theta, torch._foreach_mul(v, e))
        with full_float32():
            logits = network(dict(zip(parameters, shifted, strict=True)), images)
    return (logits - known.logits) / e


def _norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all tensors as one vector."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm


def by_dual_numbers(network: FrozenNetwork, parameters: Parameters, images: Tensor, direction: Parameters) -> Tensor:
    """The derivative of the logits in one pass that carries it along with each value."""
    # the fused kernels of attention have no forward-mode derivative
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        duals = {
            name: forward_ad.make_dual(parameter, direction[name])  # type: ignore[no-untyped-call]
            for name, parameter in parameters.items()
        }
        _, found = forward_ad.unpack_dual(network(duals, images))  # type: ignore[no-untyped-call]
    assert found is not None
    derivative: Tensor = found.float()
    return derivative


def random_state(device: torch.device) -> Tensor:
    """The state of the random numbers that a network draws on a device."""
    state: Tensor = _generators(device).get_rng_state()
    return state


@contextmanager
def repeated(state: Tensor, device: torch.device) -> Iterator[None]:
    """Within it, a network draws the random numbers that it drew after this state."""
    before = random_state(device)
    _generators(device).set_rng_state(state)
    try:
        yield
    finally:
        _generators(device).set_rng_state(before)


def _generators(device: torch.device) -> Any:
    return torch.get_device_module(device) if device.type in ("cuda", "mps", "xpu") else torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Within it, products of single precision are not rounded to TF32 or bfloat16, as cuDNN does by default."""
    on_gpu, on_cpu, matmul = torch.backends.cudnn, torch.backends.mkldnn, torch.backends.cuda.matmul
    units: list[Any] = [matmul, on_gpu.conv, on_gpu.rnn, on_cpu.matmul, on_cpu.conv, on_cpu.rnn]  # type: ignore[attr-defined]  # torch does not declare them
    before = [unit.fp32_precision for unit in units]
    for unit in units:
        unit.fp32_precision = "ieee"
    try:
        yield
    finally:
        for unit, precision in zip(units, before, strict=True):
            unit.fp32_precision = precision


@torch.enable_grad()
def _gradient(losses: Sequence[LossOfParameters], parameters: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
    """Value and gradient of a sum of losses, over all ranks."""
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    value, gradients = gradient_of_sum([partial(loss, leaves) for loss in losses], list(leaves.values()))
    pairs = zip(leaves.items(), gradients, strict=True)
    return value, {name: torch.zeros_like(leaf) if gradient is None else gradient for (name, leaf), gradient in pairs}
