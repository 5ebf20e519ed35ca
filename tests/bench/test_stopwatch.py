from collections.abc import Iterator

import torch

from ddn_lightning.bench.stopwatch import clock_of, interleaved


def test_actions_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    seconds: Iterator[float] = iter([0, 100, 100, 200, 200, 203, 203, 204, 204, 206, 206, 211])
    timings = interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, clock=lambda: next(seconds)
    )
    assert order == ["a", "b"] * 3
    assert timings["a"].seconds == (3, 2)
    assert timings["b"].seconds == (1, 5)
    assert timings["a"].over(timings["b"]) == 2
    assert timings["b"].median == 3


def test_on_a_cpu_waiting_takes_no_time() -> None:
    import time

    timing = interleaved({"wait": lambda: time.sleep(0.1)}, rounds=1, clock=clock_of(torch.device("cpu")))["wait"]
    assert timing.best < 0.05
