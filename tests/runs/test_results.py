import json
from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.runs.results import RunResult, read_divergence, read_result

COMPLETE = {
    "average_accuracy": 40.0,
    "forgetting": None,
    "accuracy_matrix": [[80.0, None], [30.0, 50.0]],
    "tasks_finished": 2,
}


def write(results: Any) -> Path:
    Path("results.json").write_text(results if isinstance(results, str) else json.dumps(results))
    return Path()


def test_a_finished_run_is_read() -> None:
    assert read_result(write(COMPLETE)) == RunResult(40.0, None, (30.0, 50.0))


@pytest.mark.parametrize("results", [{**COMPLETE, "tasks_finished": 1}, {}, [], "", '{"accuracy_matrix": [[1.0,'])
def test_an_unfinished_or_foreign_file_gives_no_result(results: Any) -> None:
    assert read_result(write(results)) is None


def test_a_run_that_diverged_gives_no_result() -> None:
    folder = write({**COMPLETE, "status": "diverged", "reason": "loss became nan"})
    assert read_result(folder) is None
    assert read_divergence(folder) == "loss became nan"
    assert read_divergence(write({**COMPLETE, "status": "complete", "reason": None})) is None
    assert read_divergence(write(COMPLETE)) is None
    assert read_divergence(write([])) is None


def test_a_missing_file_gives_no_result() -> None:
    assert read_result(Path("nowhere")) is None
    assert read_divergence(Path("nowhere")) is None
