"""A plan on a local Ray cluster with two workers, if Ray is installed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddn_lightning.cli import main
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Options, plan
from ddn_lightning.reproduce.presets import read_presets
from ddn_lightning.reproduce.ray_executor import RayExecutor
from ddn_lightning.runs.results import read_result

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray has warnings of its own
CONFIGS = Path(__file__).parents[2] / "configs"
SHORT = ["--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1"]


@pytest.fixture(autouse=True)
def _two_workers() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def reproduce(*arguments: str) -> int:
    options = ["--methods", "er", "--plugins", "none", "--configs", str(CONFIGS), "--executor", "ray"]
    return main(["reproduce", "digits", *options, *arguments])


def test_the_plan_is_executed_on_both_workers_and_then_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("--seeds", "1", "2", "3", "--", *SHORT) == 0
    printed = capsys.readouterr()
    assert "(3)" in printed.out
    assert printed.err.count(": started") == printed.err.count(": finished") == 3
    assert printed.err.index(": finished") > printed.err.index("-seed2")  # two at a time
    assert reproduce("--seeds", "1", "2", "3", "--", *SHORT) == 0
    assert capsys.readouterr().err.count(": found") == 3


def test_a_failing_run_is_reported_with_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("--seeds", "1", "--", "--model.lr", "-1") == 1
    printed = capsys.readouterr()
    assert "error: lr must be positive, got -1" in printed.err
    assert "0 of 1 runs" in printed.out
    assert len(list(Path("runs").glob("*.log"))) == 1


def test_stopping_lets_the_runs_save() -> None:
    options = Options(CONFIGS, Path("runs"), extra=["--data.epochs_per_task", "500"])
    (run,) = plan([Cell("offline", "digits", 100, "er")], [1], read_presets(CONFIGS), options)
    deadline = time.monotonic() + 120

    def is_stopped() -> bool:
        assert time.monotonic() < deadline
        return (run.folder / "metrics.csv").exists()

    assert [event.state for event in RayExecutor().execute([run], is_stopped)] == ["started", "stopping"]
    assert (run.folder / "checkpoints/last.ckpt").exists()
    assert read_result(run.folder) is None
