"""Gradient steps that sum over all ranks, and a context for evaluation mode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ddn_lightning.distributed import sum_across_ranks

ClipAlgorithm = Literal["norm", "value"]
Gradients = Sequence[Tensor | None]


@dataclass(frozen=True)
class ObservedTerm:
    """A term of a sum that is told value and gradient of the terms before it, on this rank, before it is computed."""

    term: Callable[[], Tensor]
    observe: Callable[[Tensor, Gradients], None]

    def __call__(self) -> Tensor:
        """The term."""
        return self.term()


def gradient_of_sum(
    terms: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor], retain_graph: bool = False
) -> tuple[Tensor, list[Tensor | None]]:
    """Value and gradient of a sum of terms over all ranks. Only one term's graph is in memory at a time.

    Args:
        terms: One or more functions that each return this rank's part of a term; :class:`ObservedTerm` sees the others.
        parameters: Tensors to differentiate by; the gradient is ``None`` where no term depends on one.
        retain_graph: Whether the terms share a graph with others that are still to be differentiated.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> gradient_of_sum([lambda: x**2, lambda: 2 * x], [x])
        (tensor(15.), [tensor(8.)])
    """
    total: Tensor | None = None
    gradients: list[Tensor | None] = [None] * len(parameters)
    for term in terms:
        if isinstance(term, ObservedTerm) and total is not None:
            term.observe(total, gradients)
        value = term()
        added = _gradients(value, parameters, retain_graph=retain_graph)
        total = value.detach() if total is None else total + value.detach()
        gradients = _sums(gradients, added)
    assert total is not None
    # not by DDP's hooks: this is exact for any number of losses and optimizers
    total, *summed = sum_across_ranks([total, *(gradient for gradient in gradients if gradient is not None)])
    found = iter(summed)
    return total, [None if gradient is None else next(found) for gradient in gradients]


def _sums(first: Gradients, second: Gradients) -> list[Tensor | None]:
    """The sum of each pair of gradients, where ``None`` is zero; one call for all."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    sums = iter(torch._foreach_add(*map(list, zip(*pairs, strict=True)))) if pairs else iter(())
    return [b if a is None else a if b is None else next(sums) for a, b in zip(first, second, strict=True)]


def descend(
    loss: Tensor, optimizer: torch.optim.Optimizer, limit: float | None = None, algorithm: ClipAlgorithm = "norm"
) -> Tensor:
    """Take one step on a loss that is the sum of one term per rank; returns the loss over all ranks.

    Args:
        loss: The loss.
        optimizer: The optimizer.
        limit: Limit for gradients, as in :func:`clip_gradients`.
        algorithm: What is limited.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = _gradients(loss, parameters, materialize_grads=True)
    value, *summed = sum_across_ranks([loss.detach(), *gradients])
    for parameter, gradient in zip(parameters, summed, strict=True):
        parameter.grad = gradient
    clip_gradients(parameters, limit, algorithm)
    optimizer.step()
    return value


def _gradients(
    value: Tensor, parameters: Sequence[Tensor], materialize_grads: bool = False, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """Gradients outside of autocast, as torch advises: a backward pass has the precision of its forward pass."""
    with torch.autocast(value.device.type, enabled=False):
        return torch.autograd.grad(
            value, parameters, retain_graph=retain_graph, allow_unused=True, materialize_grads=materialize_grads
        )


def moved_along(
    optimizer: torch.optim.Optimizer, rates: Sequence[float], gradients: Mapping[Tensor, Tensor]
) -> dict[Tensor, Tensor]:
    r"""How far the last step would have gone further along gradients: P g of a step :math:`\theta - P g`.

    Momentum and weight decay move a step, but not by more of the gradient. An adaptive step has its preconditioner
    held.

    Args:
        optimizer: SGD, Adam or AdamW.
        rates: The learning rate of each parameter group in that step.
        gradients: A gradient for some of the parameters.
    """
    found: dict[Tensor, Tensor] = {}
    for group, lr in zip(optimizer.param_groups, rates, strict=False):  # callbacks may have added groups since
        chosen = [parameter for parameter in group["params"] if parameter in gradients]
        momentum = group.get("momentum", 0)
        further = momentum if group.get("nesterov") else -group.get("dampening", 0) if momentum else 0
        if chosen:
            moves = list(torch._foreach_mul([gradients[parameter] for parameter in chosen], lr * (1 + further)))
            if isinstance(optimizer, torch.optim.Adam):
                moves = [
                    _preconditioned(move, optimizer.state[p], group) for move, p in zip(moves, chosen, strict=True)
                ]
            found.update(zip(chosen, moves, strict=True))
    return found


def _preconditioned(move: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any]) -> Tensor:
    """By Adam's share of the newest gradient in its mean, and by the root of its mean square."""
    if not state:  # no loss has depended on this parameter yet
        return move
    first, second = group["betas"]
    square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    root = (square / (1 - second ** state["step"])).sqrt() + group["eps"]
    preconditioned: Tensor = move * ((1 - first) / (1 - first ** state["step"])) / root
    return preconditioned


def clip_gradients(parameters: Sequence[Tensor], limit: float | None, algorithm: ClipAlgorithm = "norm") -> None:
    """Limit the ``norm`` of all gradients or each ``value``; without a limit do nothing."""
    if limit is not None:
        clip = clip_grad_norm_ if algorithm == "norm" else clip_grad_value_
        clip(parameters, limit)


class Switchable(Protocol):
    """A module, or a protocol of one, that can be switched to evaluation mode."""

    def modules(self) -> Iterator[nn.Module]:
        """All parts."""

    def eval(self) -> Any:
        """Switch all parts to evaluation mode."""


@contextmanager
def evaluating(module: Switchable) -> Iterator[None]:
    """Evaluation mode without gradients; restores the mode of each submodule.

    ``train()`` would also switch layers that the user keeps in evaluation mode.
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
