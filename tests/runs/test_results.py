import json
from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.results import Results, read_divergence, read_result, read_results, read_stop, write_results

COMPLETE = {
    "status": "complete",
    "method": "ER",
    "dataset": "digits",
    "buffer_size": 50,
    "seed": 0,
    "tasks_finished": 2,
    "average_accuracy": 40.0,
    "accuracy_matrix": [[80.0, None], [30.0, 50.0]],
}


def write(results: Any) -> Path:
    Path("results.json").write_text(results if isinstance(results, str) else json.dumps(results))
    return Path()


def test_a_record_is_read_as_it_was_written() -> None:
    facts = {"image_shape": [3, 8, 9], "images_per_class": [4, 5], "labels_checksum": "a", "images_checksum": "b"}
    record = Results(
        **COMPLETE,
        plugin="DataDistillNet",
        chosen_on_seeds=(0, 1),
        class_names=("cat", "dog"),
        data={"train": facts, "test": None},
        anytime={"minimum_accuracy": 12.0, "unseen_tasks": False},
        calibrated_average_accuracy=45.0,
    )
    write_results(Path(), record)
    read = read_results(Path())
    assert read is not None
    assert vars(read) == vars(record)
    assert json.loads(Path("results.json").read_text())["schema"] == 1
    assert Path("accuracy_matrix.csv").read_text().split() == ["after_task,task_1,task_2", "1,80.0,", "2,30.0,50.0"]
    assert read.num_images == {"train": 9}
    assert read.title == "ER + DataDistillNet"
    assert read.matrix.isnan().tolist() == [[False, True], [False, False]]


def test_the_test_images_count_where_a_run_with_a_validation_split_has_opened_them() -> None:
    test = {"average_accuracy": 35.0, "accuracies": [25.0, 45.0], "calibrated_average_accuracy": 36.0}
    split = Results(**COMPLETE, forgetting=50.0, measured_on="validation", test=test)
    assert (split.acc, split.fm, split.calibrated_acc) == (35.0, 50.0, 36.0)
    assert (split.acc_measured_on, split.measures) == ("test", "ACC, task-IL ACC (test), FM, AAA (validation)")
    assert split.per_task == (25.0, 45.0)
    closed = Results(**COMPLETE, measured_on="validation")
    assert (closed.acc, closed.per_task) == (40.0, (30.0, 50.0))
    assert (closed.acc_measured_on, closed.measures) == ("validation", "ACC, task-IL ACC, FM, AAA (validation)")
    whole = Results(**COMPLETE)
    assert (whole.acc, whole.acc_measured_on, whole.measures) == (40.0, "test", "")


@pytest.mark.parametrize(
    ("change", "finished", "divergence", "stop"),
    [
        ({}, True, None, None),
        ({"status": "incomplete", "tasks_finished": 1}, False, None, None),
        ({"status": "diverged", "reason": "loss became nan"}, False, "loss became nan", None),
        ({"status": "stopped", "reason": "as told", "tasks_finished": 1}, False, None, "as told"),
    ],
)
def test_a_run_has_finished_diverged_or_stopped(
    change: dict[str, Any], finished: bool, divergence: str | None, stop: str | None
) -> None:
    folder = write(COMPLETE | change)
    assert (read_result(folder) is not None) == finished
    assert (read_divergence(folder), read_stop(folder)) == (divergence, stop)


@pytest.mark.parametrize(
    "damaged",
    [
        *("", "[]", "{}", '{"accuracy_matrix": [[1.0,', "[" * 100_000),
        COMPLETE | {"accuracy_matrix": [[1.0, 2.0]]},
        COMPLETE | {"accuracy_matrix": [["<b>"]]},
        COMPLETE | {"seed": 1.5},
        COMPLETE | {"average_accuracy": "40"},
        COMPLETE | {"average_accuracy": float("inf")},
        COMPLETE | {"test": {"average_accuracy": "35"}},
        COMPLETE | {"schema": 1, "unknown": 1},
    ],
)
def test_a_damaged_file_gives_no_result(damaged: Any) -> None:
    assert read_results(write(damaged)) is None
    assert read_divergence(Path()) is None


def test_a_file_of_an_earlier_version_may_have_values_that_are_not_recorded_any_more() -> None:
    read = read_results(write(COMPLETE | {"calibrated_backward_transfer": -3.0}))
    assert read is not None
    assert read.average_accuracy == 40.0


def test_a_missing_file_gives_no_result() -> None:
    assert read_result(Path("nowhere")) is None
    assert read_divergence(Path("nowhere")) is None


def test_a_file_of_another_schema_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^results.json must be of schema 1, got 2: of another version$"):
        Results.from_json(json.dumps({"schema": 2}))
