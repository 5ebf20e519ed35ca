import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from ddn_lightning.distributed import (
    average_batch_norm,
    gather_shares,
    local_share,
    rank_and_world_size,
    sum_across_ranks,
    take_from_first_rank,
)


def work(rank: int, world_size: int, store: Path, size: int, results: Connection) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    whole = torch.arange(2 * size).view(size, 2)
    share = local_share(whole)
    sums = sum_across_ranks([torch.full((2, 2), float(rank)), torch.tensor(1.0, dtype=torch.float64)])
    layer, own = nn.BatchNorm1d(1), torch.tensor([float(rank)])
    layer.running_mean.fill_(rank)  # type: ignore[union-attr]
    average_batch_norm(layer)
    take_from_first_rank([own])
    shared = layer.running_mean.tolist(), own.tolist()  # type: ignore[union-attr]
    results.send(
        (share.tolist(), gather_shares(share, size).tolist(), [s.tolist() for s in sums], sums[0].dtype, shared)
    )
    distributed.destroy_process_group()


@pytest.mark.parametrize("size", [6, 5, 2])
def test_three_ranks_share_gather_sum_and_average(tmp_path: Path, size: int) -> None:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(3)]
    processes = [
        context.Process(target=work, args=(rank, 3, tmp_path / "store", size, pipes[rank][1])) for rank in range(3)
    ]
    for process in processes:
        process.start()
    answers = [pipe.recv() for pipe, _ in pipes]
    for process in processes:
        process.join()

    whole = torch.arange(2 * size).view(size, 2).tolist()
    for rank, (share, gathered, sums, dtype, (mean, of_first)) in enumerate(answers):
        assert share == whole[rank::3]
        assert gathered == whole
        assert sums == [[[3.0, 3.0], [3.0, 3.0]], 3.0]
        assert dtype == torch.float32
        assert (mean, of_first) == ([1.0], [0.0])


def test_one_device_is_the_identity() -> None:
    tensors = [torch.rand(2), torch.rand(3, 1)]
    assert rank_and_world_size() == (0, 1)
    assert torch.equal(local_share(tensors[0]), tensors[0])
    assert torch.equal(gather_shares(tensors[1], 3), tensors[1])
    assert all(a is b for a, b in zip(sum_across_ranks(tensors), tensors, strict=True))
