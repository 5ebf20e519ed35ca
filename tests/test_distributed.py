import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import distributed

from ddn_lightning.distributed import gather_shares, local_share, rank_and_world_size, sum_across_ranks


def work(rank: int, world_size: int, store: Path, size: int, results: Connection) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    whole = torch.arange(2 * size).view(size, 2)
    share = local_share(whole)
    sums = sum_across_ranks([torch.full((2, 2), float(rank)), torch.tensor(1.0, dtype=torch.float64)])
    results.send((share.tolist(), gather_shares(share, size).tolist(), [s.tolist() for s in sums], sums[0].dtype))
    distributed.destroy_process_group()


@pytest.mark.parametrize("size", [6, 5, 2])
def test_three_ranks_share_and_gather_a_batch(tmp_path: Path, size: int) -> None:
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
    for rank, (share, gathered, sums, dtype) in enumerate(answers):
        assert share == whole[rank::3]
        assert gathered == whole
        assert sums == [[[3.0, 3.0], [3.0, 3.0]], 3.0]
        assert dtype == torch.float32


def test_one_device_is_the_identity() -> None:
    tensors = [torch.rand(2), torch.rand(3, 1)]
    assert rank_and_world_size() == (0, 1)
    assert local_share(tensors[0]) is not None
    assert torch.equal(gather_shares(tensors[1], 3), tensors[1])
    assert all(a is b for a, b in zip(sum_across_ranks(tensors), tensors, strict=True))
