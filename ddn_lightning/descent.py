"""One optimizer step by several devices as if they were one."""

import torch
from torch import Tensor

from ddn_lightning.distributed import sum_across_ranks


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """Step along the gradient of a loss of which each rank has a term; returns the loss over all ranks."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    value, *summed = sum_across_ranks([loss.detach(), *gradients])
    for parameter, gradient in zip(parameters, summed, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return value
