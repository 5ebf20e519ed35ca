"""What becomes of a run whose machine is lost, on a stand-in for Ray: the real one is in ``test_lost_machine.py``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_executor import PROGRAM, make_runs, starts, states

from ddn_lightning.reproduce import ray_executor
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.reproduce.ray_executor import LOST_MACHINES, RayExecutor
from ddn_lightning.runs.results import read_result


class RayError(Exception):
    """As Ray's."""


class StandIn:
    """A cluster that loses its machine each time that a run is started, until it has lost enough of them.

    Args:
        losses: Machines that each run loses.
    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, losses: int) -> None:
        self.losses = losses

    def remote(self, max_retries: int, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        def execute(function: Callable[..., Any], run: Run, folder: Path) -> Callable[[], Any]:
            return lambda: self._attempts(max_retries, partial(function, run, folder), run)

        return lambda function: SimpleNamespace(remote=partial(execute, function))

    def _attempts(self, max_retries: int, execute: Callable[[], Any], run: Run) -> Any:
        for attempt in range(max_retries + 1):
            if attempt >= self.losses:
                return execute()
            (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            (run.folder / "checkpoints" / "last.ckpt").touch()
        raise RayError("first line\nthe node is dead")

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        print("(raylet) a node is dead")  # as Ray does, whatever its settings
        return references[:1], references[1:]

    def get(self, reference: Callable[[], Any]) -> Any:
        return reference()

    def is_initialized(self) -> bool:
        return True

    def init(self, **_: Any) -> None:
        """There is nothing to connect to."""

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, list[Run]], list[Any]]:
    def execute(losses: int, runs: list[Run]) -> list[Any]:
        monkeypatch.setattr(ray_executor, "_import_ray", lambda: StandIn(losses))
        monkeypatch.setattr(ray_executor, "PROGRAM", PROGRAM)
        return list(RayExecutor().execute(runs))

    return execute


def test_a_run_whose_machine_is_lost_goes_on_at_another(execute: Callable[[int, list[Run]], list[Any]]) -> None:
    runs = make_runs(2)
    events = execute(1, runs)
    assert all(states(events, run) == ["started", "finished"] for run in runs)
    assert all(starts(run) == ["resumed"] for run in runs)
    assert [read_result(run.folder).acc for run in runs] == [41, 42]


def test_a_cluster_whose_machines_are_still_to_come_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "cluster_resources", lambda _: {"memory": 1.0})  # a head without processors
    monkeypatch.setattr(ray_executor, "_import_ray", lambda: StandIn(0))
    assert RayExecutor().jobs == 1


def test_what_ray_prints_stays_out_of_the_result(
    execute: Callable[[int, list[Run]], list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    execute(0, make_runs(1))
    print("the table")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("the table\n", "(raylet) a node is dead\n")


def test_a_run_that_loses_one_machine_after_another_is_given_up(
    execute: Callable[[int, list[Run]], list[Any]],
) -> None:
    (run,) = make_runs(1)
    last = execute(LOST_MACHINES + 1, [run])[-1]
    assert (last.state, last.message) == ("failed", "the node is dead")
