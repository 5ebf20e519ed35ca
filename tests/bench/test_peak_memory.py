import pytest
import torch
from torch import Tensor

from ddn_lightning.bench.peak_memory import CLEAR, peak_memory

SIZE = 1000
BYTES = 4 * SIZE
CPU = torch.device("cpu")


def square_of(x: Tensor) -> Tensor:
    return x.square().sum()


def test_what_two_graphs_hold_at_once_is_added_up() -> None:
    leaves = [torch.ones(SIZE, requires_grad=True) for _ in range(2)]

    def together() -> None:
        torch.autograd.grad(square_of(leaves[0]) + square_of(leaves[1]), leaves)

    def one_after_another() -> None:
        for leaf in leaves:
            torch.autograd.grad(square_of(leaf), leaf)

    assert peak_memory(together, CPU).saved == 2 * BYTES
    assert peak_memory(one_after_another, CPU).saved == BYTES


def test_a_storage_counts_once() -> None:
    leaf = torch.ones(SIZE, requires_grad=True)
    peak = peak_memory(lambda: torch.autograd.grad(square_of(leaf) + square_of(leaf[:10]), leaf), CPU)
    assert peak.saved == BYTES


def test_a_second_order_graph_works_while_it_is_counted() -> None:
    leaf = torch.full((SIZE,), 2.0, requires_grad=True)
    found: list[Tensor] = []

    def twice() -> None:
        (gradient,) = torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)
        found.extend(torch.autograd.grad(gradient.sum(), leaf))

    assert peak_memory(twice, CPU).saved >= BYTES
    assert torch.equal(found[0], torch.full((SIZE,), 12.0))


@pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell a process's peak")
def test_the_growth_of_a_process_is_seen() -> None:
    size = 64 * 2**20
    peak = peak_memory(lambda: torch.ones(size, dtype=torch.uint8).max(), CPU)
    assert peak.saved == 0
    assert peak.allocated is not None
    assert 0.9 * size <= peak.allocated < 2 * size
