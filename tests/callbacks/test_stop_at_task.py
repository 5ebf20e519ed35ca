"""A run that is told to stop at a task's end is the beginning of the whole run."""

import json
import math
from pathlib import Path

import pytest
import torch
from tiny import Fit, TinySequence, small_net

from ddn_lightning import ER
from ddn_lightning.callbacks import StopAtTask
from ddn_lightning.cli import main
from ddn_lightning.reproduce.executor import can_resume, has_ended_well
from ddn_lightning.runs.results import read_result, read_stop

NAN = math.nan
MATRIX = torch.tensor([[90.0, NAN, NAN], [40.0, 80.0, NAN], [NAN, NAN, NAN]])
CONFIGS = Path(__file__).parents[2] / "configs"
STOP = "--trainer.callbacks+=ddn_lightning.callbacks.StopAtTask"


@pytest.mark.parametrize(
    ("tasks", "reason"), [(3, None), (2, "after 2 of 3 tasks, as asked"), (1, "after 1 of 3 tasks, as asked")]
)
def test_the_accuracy_matrix_decides(tasks: int, reason: str | None) -> None:
    assert StopAtTask(tasks).reason(MATRIX) == reason


def test_a_stopped_run_has_the_rows_of_the_whole_run(fit: Fit) -> None:
    def method() -> ER:
        return ER(small_net(), num_classes=6, buffer_size=8)

    whole = fit(method, TinySequence(batch_size=6)).accuracy_matrix
    stopped = fit(method, TinySequence(batch_size=6), callbacks=[StopAtTask(tasks=2)]).accuracy_matrix
    assert stopped[:2].nan_to_num(-1).equal(whole[:2].nan_to_num(-1))
    assert stopped[2].isnan().all()


def test_a_stopped_run_is_recorded_and_not_started_again() -> None:
    fit = ["fit", "-c", str(CONFIGS / "base.yaml"), "--trainer.enable_progress_bar=false", "--name", "one"]
    assert main([*fit, STOP, "--trainer.callbacks.tasks", "2"]) == 0
    folder = Path("runs/one")
    results = json.loads((folder / "results.json").read_text())
    assert (results["status"], results["tasks_finished"]) == ("stopped", 2)
    assert read_stop(folder) == "after 2 of 5 tasks, as asked"
    assert read_result(folder) is None
    assert has_ended_well(folder)
    assert not can_resume(folder)

    (folder / "results.json").unlink()  # killed before it was written: a resumed run stops at the same place
    assert main([*fit, STOP, "--trainer.callbacks.tasks", "2", "--ckpt_path", "last"]) == 0
    again = json.loads((folder / "results.json").read_text())
    assert (again["accuracy_matrix"], again["steps"]) == (results["accuracy_matrix"], results["steps"])

    assert main([*fit, "--ckpt_path", "last"]) == 0  # without the callback it goes on
    assert read_result(folder) is not None
    assert read_stop(folder) is None
