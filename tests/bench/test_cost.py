import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ddn_lightning.bench.cost import CLEAR, Part, PartTimes, clock_of, peak_memory, time_in_turns

SIZE = 1000
BYTES = 4 * SIZE
CPU = torch.device("cpu")


def test_actions_take_turns_after_a_warm_up_round() -> None:
    order: list[str] = []
    seconds: Iterator[float] = iter([0, 100, 100, 200, 200, 203, 203, 204, 204, 206, 206, 211])
    timings = time_in_turns(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, clock=lambda: next(seconds)
    )
    assert order == ["a", "b"] * 3
    assert timings == {"a": [3, 2], "b": [1, 5]}


def test_waiting_takes_no_time_on_a_cpu() -> None:
    timings = time_in_turns({"wait": lambda: time.sleep(0.1)}, rounds=1, clock=clock_of(CPU))
    assert min(timings["wait"]) < 0.05


class Walk:
    """An action whose parts take known times."""

    def __init__(self) -> None:
        self.now = 0.0

    def stride(self) -> None:
        self.now += 3
        self.breathe()

    def breathe(self) -> None:
        self.now += 1

    def walk(self) -> None:
        self.now += 10
        self.stride()
        self.breathe()


@pytest.mark.parametrize(("with_nested", "stride", "breathe"), [(False, 3, 2), (True, 4, 1)])
def test_time_counts_for_the_innermost_part_unless_an_outer_one_includes_nested(
    with_nested: bool, stride: float, breathe: float
) -> None:
    walk = Walk()
    parts = [Part("stride", walk, "stride", with_nested), Part("breathe", walk, "breathe")]
    times = PartTimes(walk.walk, parts, clock=lambda: walk.now)
    times.watch()
    assert times.seconds == {"stride": stride, "breathe": breathe, "rest": 10}
    times.watch()
    assert sum(times.seconds.values()) == walk.now == 30
    assert vars(walk).keys() == {"now"}  # no method is left wrapped


def test_a_failing_action_leaves_no_method_wrapped() -> None:
    walk = Walk()
    walk.now = "broken"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        PartTimes(walk.walk, [Part("stride", walk, "stride")], clock=lambda: 0.0).watch()
    assert "stride" not in vars(walk)


def square_of(x: Tensor) -> Tensor:
    return x.square().sum()


def test_storages_saved_by_two_graphs_at_once_add_up() -> None:
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


def test_a_second_order_graph_works_while_memory_is_measured() -> None:
    leaf = torch.full((SIZE,), 2.0, requires_grad=True)
    found: list[Tensor] = []

    def twice() -> None:
        (gradient,) = torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)
        found.extend(torch.autograd.grad(gradient.sum(), leaf))

    assert peak_memory(twice, CPU).saved >= BYTES
    assert torch.equal(found[0], torch.full((SIZE,), 12.0))


@pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell a process's peak")
def test_the_growth_of_resident_memory_is_measured() -> None:
    size = 64 * 2**20
    peak = peak_memory(lambda: torch.ones(size, dtype=torch.uint8).max(), CPU)
    assert peak.saved == 0
    assert peak.allocated is not None
    assert 0.9 * size <= peak.allocated < 2 * size
