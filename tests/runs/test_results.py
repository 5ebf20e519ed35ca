import json
from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.runs.results import RunResult, parse_results, read_divergence, read_result

COMPLETE = {
    "average_accuracy": 40.0,
    "forgetting": None,
    "accuracy_matrix": [[80.0, None], [30.0, 50.0]],
    "tasks_finished": 2,
}
WHOSE = {"method": "ER", "dataset": "digits", "buffer_size": 50, "seed": 0}


def write(results: Any) -> Path:
    Path("results.json").write_text(results if isinstance(results, str) else json.dumps(results))
    return Path()


def test_a_finished_run_is_read() -> None:
    assert read_result(write(COMPLETE)) == RunResult(40.0, None, (30.0, 50.0))
    both = {"calibrated_average_accuracy": 45.0, "calibrated_forgetting": 12.0}
    assert read_result(write(COMPLETE | both)) == RunResult(40.0, None, (30.0, 50.0), 45.0, 12.0)


def test_the_test_images_count_where_a_run_with_a_validation_split_has_opened_them() -> None:
    test = {"average_accuracy": 35.0, "accuracies": [25.0, 45.0], "calibrated_average_accuracy": 36.0}
    split = {**COMPLETE, "forgetting": 50.0, "measured_on": "validation", "test": test, **WHOSE}
    assert read_result(write(split)) == RunResult(35.0, 50.0, (25.0, 45.0), 36.0)
    results = parse_results(json.dumps(split).encode())
    assert (results.acc, results.validation_acc, results.fm, results.calibrated_acc) == (35.0, 40.0, 50.0, 36.0)
    assert (results.acc_measured_on, results.measures) == ("test", "ACC, task-IL ACC (test), FM, AAA (validation)")
    closed = parse_results(json.dumps({**split, "test": None}).encode())
    assert (closed.acc, closed.validation_acc) == (40.0, 40.0)
    assert (closed.acc_measured_on, closed.measures) == ("validation", "ACC, task-IL ACC, FM, AAA (validation)")
    old = parse_results(json.dumps({**COMPLETE, **WHOSE}).encode())
    assert (old.acc, old.validation_acc, old.acc_measured_on, old.measures) == (40.0, None, "test", "")


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


def test_what_later_versions_record_is_read_and_absent_from_earlier_files() -> None:
    base = {**COMPLETE, "method": "ER", "dataset": "digits", "buffer_size": 5, "seed": 1}
    old = parse_results(json.dumps({**base, "task_il_matrix": [[90.0, None], [60.0, 80.0]]}).encode())
    assert (old.task_il_acc, old.chosen_on_seeds, old.num_images, old.image_shape) == (70.0, (), {}, ())
    assert parse_results(json.dumps(base).encode()).task_il_acc is None
    stopped = parse_results(json.dumps({**base, "task_il_matrix": [[90.0, None], [None, None]]}).encode())
    assert stopped.task_il_acc is None
    facts = {"image_shape": [3, 8, 9], "images_per_class": [4, 5]}
    recorded = {"task_il_average_accuracy": 71.0, "chosen_on_seeds": [0, 1], "data": {"train": facts, "test": None}}
    new = parse_results(json.dumps(base | recorded).encode())
    assert (new.task_il_acc, new.chosen_on_seeds, new.num_images) == (71.0, (0, 1), {"train": 9})
    assert new.image_shape == (3, 8, 9)
