"""A trial is scored on validation images, and pruned below the median of the same task."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.tune.outcome import Outcome, mean_outcome, read_outcome, thresholds

MATRIX = [[90.0, None, None], [60.0, 80.0, None], [30.0, 60.0, 90.0]]


def written(folder: Path, finished: int = 3, **others: Any) -> Path:
    results = {"accuracy_matrix": MATRIX, "tasks_finished": finished, "measured_on": "validation", **others}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.mark.parametrize(
    ("finished", "tasks", "status", "outcome"),
    [
        (3, None, "complete", Outcome("complete", (90.0, 70.0, 60.0))),
        (2, 2, "stopped", Outcome("complete", (90.0, 70.0))),
        (2, 3, "stopped", Outcome("pruned", (90.0, 70.0))),
        (2, None, "stopped", Outcome("pruned", (90.0, 70.0))),
        (3, 7, "complete", Outcome("complete", (90.0, 70.0, 60.0))),
        (1, 3, "diverged", Outcome("diverged", (90.0,))),
        (0, 3, "diverged", Outcome("diverged", ())),
    ],
)
def test_an_outcome_is_acc_after_each_task(
    finished: int, tasks: int | None, status: str, outcome: Outcome, tmp_path: Path
) -> None:
    found = read_outcome(written(tmp_path, finished, status=status, reason="why"), tasks)
    assert found == outcome
    assert found.score == (0.0 if status == "diverged" else outcome.curve[-1])


@pytest.mark.parametrize("others", [{"measured_on": "test"}, {"test": {"average_accuracy": 50.0}}])
def test_a_run_that_has_seen_test_images_has_no_score(others: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be measured on validation images alone"):
        read_outcome(written(tmp_path, **others), 3)


def test_a_run_without_accuracies_has_no_score(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must have an accuracy after each task"):
        read_outcome(written(tmp_path, accuracy_matrix=[[None]], finished=1), 3)
    with pytest.raises(ConfigurationError, match="must hold the results of a trial"):
        read_outcome(tmp_path / "nowhere", 3)


def test_a_trial_is_as_good_as_its_worst_run() -> None:
    runs = [Outcome("complete", (90.0, 60.0)), Outcome("complete", (80.0, 50.0))]
    assert mean_outcome(runs) == Outcome("complete", (85.0, 55.0))
    assert mean_outcome([*runs, Outcome("diverged", ())]) == Outcome("diverged", ())


def test_pruning_starts_at_the_second_task_of_the_sixth_trial() -> None:
    curves = [(99.0, float(acc), 40.0, 20.0) for acc in (60, 62, 64, 66, 90)]
    assert thresholds(curves[:4]) == []
    assert thresholds(curves) == [None, 64.0, 40.0]  # and never at the last task
