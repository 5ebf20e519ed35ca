"""Collectives that make several ranks compute what one would, and copies between host and device.

On one device all collectives are the identity. Rank r of R takes the samples ``[r::R]`` of a global batch. Random
numbers are drawn for the global batch, by generators that agree on all ranks, and split in the same way.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

BLOCKING = ("cpu", "mps")  # as in Lightning: values must have arrived on the host, and torch has a race on MPS


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def local_share(whole: Tensor) -> Tensor:
    """This rank's share of a global batch."""
    rank, world_size = rank_and_world_size()
    return whole[rank::world_size]


def gather_shares(share: Tensor, global_size: int) -> Tensor:
    """The global batch in its original order, gathered from each rank's :func:`local_share`."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return share
    rows = -(-global_size // world_size)  # shares differ by at most one row; all_gather needs equal sizes
    padded = share.new_zeros((rows, *share.shape[1:]))
    padded[: len(share)] = share
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    distributed.all_gather(gathered, padded)
    return torch.stack(gathered, dim=1).flatten(0, 1)[:global_size]


def gather_with_gradient(share: Tensor, global_size: int) -> Tensor:
    """As :func:`gather_shares`, but differentiable by this rank's share.

    For a loss that compares samples of several ranks: each rank computes the whole loss and returns
    :func:`part_of_rank` of it. The gradients summed over the ranks are then those of one device.
    """
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        return share
    whole = gather_shares(share.detach(), global_size)
    whole[rank::world_size] = share
    return whole


def part_of_rank(value: Tensor) -> Tensor:
    """This rank's part of a value that every rank has computed: the parts sum to it; gradients stay as they are."""
    _, world_size = rank_and_world_size()
    return value - value.detach() * (1 - 1 / world_size)


def take_from_first_rank(tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors with those of rank 0: ranks that compute the same may still round differently."""
    _, world_size = rank_and_world_size()
    if world_size > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, src=0)


def sum_across_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sum each tensor over all ranks, with a single all-reduce."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    distributed.all_reduce(flat)
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor).to(tensor.dtype) for piece, tensor in zip(pieces, tensors, strict=True)]


def average_batch_norm(module: nn.Module) -> None:
    """Average BatchNorm's running statistics over all ranks."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    statistics = [s for layer in layers for s in (layer.running_mean, layer.running_var) if s is not None]
    if statistics:
        for statistic, total in zip(statistics, sum_across_ranks(statistics), strict=True):
            statistic.copy_(total / world_size)


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without synchronising; returns the tensor itself if it is there already.

    ``tensor.to(device)`` waits for all work queued on the device. ``non_blocking=True`` does not, but on a copy to the
    host the values might be read before they have arrived.

    >>> moved(torch.tensor([1, 2]), "cpu")
    tensor([1, 2])
    """
    return tensor.to(device, non_blocking=torch.device(device).type not in BLOCKING)
