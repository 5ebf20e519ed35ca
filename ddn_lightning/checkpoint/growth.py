"""Saved tensors for more classes and tasks than they were saved for."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

NO_MASS = 17.0  # so far below the mean of others, a logit takes less of a softmax than single precision resolves


def overlaid(values: Tensor, onto: Tensor) -> Tensor:
    """A copy of ``onto`` with the given values in its first rows and columns, as far as both reach.

    >>> import torch
    >>> overlaid(torch.tensor([1, 2]), torch.tensor([0, 0, 9]))
    tensor([1, 2, 9])
    """
    both = tuple(slice(min(sizes)) for sizes in zip(values.shape, onto.shape, strict=True))
    result = onto.clone()
    result[both] = values[both]
    return result


def resized(values: Tensor, shape: Sequence[int], fill: float = 0) -> Tensor:
    """The values in another shape: cut off where it is smaller, filled up where it is larger.

    >>> import torch
    >>> resized(torch.tensor([1, 2]), (3,), fill=-1)
    tensor([ 1,  2, -1])
    """
    return overlaid(values, values.new_full(tuple(shape), fill))


def with_low_logits(logits: Tensor, number: int) -> Tensor:
    """Logits (rows, number) whose added columns get no mass in a softmax, but a gradient; ``logits`` is (rows, any).

    >>> import torch
    >>> with_low_logits(torch.tensor([[1.0, 3.0]]), 3)
    tensor([[  1.,   3., -15.]])
    """
    return overlaid(logits, (logits.mean(dim=1, keepdim=True) - NO_MASS).repeat(1, number))


def grow_moments(saved: Sequence[dict[str, Any]], optimizers: Sequence[Optimizer]) -> None:
    """Fill up saved optimizer states with zeros to the shapes of parameters that have grown, in place."""
    for state, optimizer in zip(saved, optimizers, strict=True):
        own = optimizer.state_dict()["state"]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for place, moments in state["state"].items():
            for name, value in moments.items():
                moments[name] = _grown_moment(value, own.get(place, {}).get(name, parameters[place]))


def _grown_moment(value: Any, like: Any) -> Any:
    is_grown = isinstance(value, Tensor) and isinstance(like, Tensor) and value.dim() == like.dim() > 0
    return resized(value, like.shape) if is_grown else value
