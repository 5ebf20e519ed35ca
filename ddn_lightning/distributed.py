"""What several devices need to act as one, and copies between the host and a device.

On one device every function here is the identity. A global batch is dealt out like cards: rank r of R takes the samples
``[r::R]``. Everything random is drawn for the global batch, by generators that agree on all ranks, and dealt out the
same way.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

BLOCKING = ("cpu", "mps")  # as Lightning has it: on the host numbers must have arrived, and on a Mac torch has a race


def rank_and_world_size() -> tuple[int, int]:
    """This process's number and how many there are."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def local_share(whole: Tensor) -> Tensor:
    """This rank's samples of a global batch."""
    rank, world_size = rank_and_world_size()
    return whole[rank::world_size]


def gather_shares(share: Tensor, global_size: int) -> Tensor:
    """The global batch in its own order, from everyone's :func:`local_share` of it."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return share
    rows = -(-global_size // world_size)  # shares differ by at most one row; all_gather wants them equal
    padded = share.new_zeros((rows, *share.shape[1:]))
    padded[: len(share)] = share
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    distributed.all_gather(gathered, padded)
    return torch.stack(gathered, dim=1).flatten(0, 1)[:global_size]


def take_from_first_rank(tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors by those of the first rank: where all compute the same, kernels may still round differently."""
    _, world_size = rank_and_world_size()
    if world_size > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, src=0)


def sum_across_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sum each tensor over all ranks, by a single all-reduce."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    distributed.all_reduce(flat)
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor).to(tensor.dtype) for piece, tensor in zip(pieces, tensors, strict=True)]


def batch_norm_statistics(module: nn.Module) -> list[Tensor]:
    """The running statistics that would drift apart between ranks; none on one device."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return []
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    return [s for layer in layers for s in (layer.running_mean, layer.running_var) if s is not None]


def average_batch_norm(module: nn.Module) -> None:
    """Give all ranks the mean of their running statistics."""
    _, world_size = rank_and_world_size()
    if statistics := batch_norm_statistics(module):
        for statistic, total in zip(statistics, sum_across_ranks(statistics), strict=True):
            statistic.copy_(total / world_size)


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device, where nobody waits for it; itself if it is there already.

    A plain ``tensor.to(device)`` waits until the device is done with everything that it was given before. With
    ``non_blocking=True`` it does not, but on the way to the host that would hand out numbers not yet there.

    >>> moved(torch.tensor([1, 2]), "cpu")
    tensor([1, 2])
    """
    return tensor.to(device, non_blocking=torch.device(device).type not in BLOCKING)
