"""``results.json``, written when a run ends."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.runs.files import read_regular, write_text

RESULTS_FILE = "results.json"
MATRIX_FILE = "accuracy_matrix.csv"  # the same matrix, for spreadsheets
COMPLETE, INCOMPLETE, DIVERGED, STOPPED = "complete", "incomplete", "diverged", "stopped"  # values of "status"
SPLITS = ("train", "test")  # of the record of the data
UNREADABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, eq=False)
class Results:
    """The contents of ``results.json``; accuracies in percent, ``None`` or ``nan`` where nothing was measured."""

    method: str  # class name
    plugin: str | None  # class name of the distiller
    dataset: str
    buffer_size: int
    seed: int
    acc: float | None  # average accuracy: on the test images, unless a run with a validation split never opened them
    fm: float | None  # forgetting
    bwt: float | None  # backward transfer
    aaa: float | None  # average anytime accuracy
    matrix: Tensor  # accuracy matrix
    tasks_finished: int
    seconds: float | None  # training time
    versions: Mapping[str, str]  # of the packages
    class_names: tuple[str, ...] | None
    divergence: str | None = None  # where and how training diverged
    cpu_minutes: float | None = None  # processor time of training
    statistics: str = "running"  # BatchNorm statistics of the evaluation: running, memory or both
    calibrated_acc: float | None = None  # with calibrated BatchNorm statistics, if statistics is both
    calibrated_fm: float | None = None
    measured_on: str = "test"  # images of the matrix, FM, BWT and AAA: test or validation
    validation_acc: float | None = None  # average accuracy on the validation split, if there is one
    test_accuracies: tuple[float | None, ...] = ()  # of each task, if opened once after a run with a validation split
    task_il_acc: float | None = None  # average accuracy among the classes of each sample's task
    chosen_on_seeds: tuple[int, ...] = ()  # seeds by which the settings were chosen
    forgetting_definition: Mapping[str, str] = field(default_factory=dict)  # arguments of Forgetting, if recorded
    num_images: Mapping[str, int] = field(default_factory=dict)  # by split, as far as recorded
    image_shape: tuple[int, ...] = ()  # channels, height, width, if recorded
    anytime: Mapping[str, float] = field(default_factory=dict)  # measures and cost of a continual evaluation

    @property
    def acc_measured_on(self) -> str:
        """The images of ``acc``: test or validation."""
        return "test" if self.test_accuracies else self.measured_on

    @property
    def measures(self) -> str:
        """The images of each measure, for a run with a validation split; empty for any other."""
        if self.measured_on == "test":
            return ""
        others = "FM, AAA (validation)"
        return f"ACC, task-IL ACC (test), {others}" if self.test_accuracies else f"ACC, task-IL ACC, {others}"

    @property
    def title(self) -> str:
        """Method and distiller."""
        return self.method if self.plugin is None else f"{self.method} + {self.plugin}"


@dataclass(frozen=True)
class RunResult:
    """The final numbers of one run, in percent; ``None`` where nothing was measured.

    ACC and accuracies are of the test images, unless a run with a validation split never opened them; FM is of the
    images that the matrix was measured on.
    """

    acc: float | None  # average accuracy
    fm: float | None  # forgetting
    per_task: tuple[float | None, ...] = ()  # accuracy of each task
    calibrated_acc: float | None = None  # with calibrated BatchNorm statistics, if the run was evaluated with both
    calibrated_fm: float | None = None


def write_results(folder: Path, results: Mapping[str, Any]) -> None:
    """Write ``results.json``, and its accuracy matrix as CSV."""
    write_text(folder / RESULTS_FILE, json.dumps(results, indent=2) + "\n")
    matrix = results["accuracy_matrix"]
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["after_task", *(f"task_{task + 1}" for task in range(len(matrix)))])
    writer.writerows([number, *row] for number, row in enumerate(matrix, start=1))
    write_text(folder / MATRIX_FILE, table.getvalue())


def read_result(folder: Path) -> RunResult | None:
    """The result of a run that has learned all its tasks; ``None`` if it has not, or has diverged."""
    try:
        results = json.loads(read_regular(folder / RESULTS_FILE))
        matrix = results["accuracy_matrix"]
        if results["tasks_finished"] < len(matrix) or results.get("status") == DIVERGED:
            return None
        test = results.get("test")
        measured, per_task = (results, matrix[-1]) if test is None else (test, test["accuracies"])
        return RunResult(
            acc=_number(measured["average_accuracy"]),
            fm=_number(results["forgetting"]),
            per_task=tuple(map(_number, per_task)),
            calibrated_acc=_number(measured.get("calibrated_average_accuracy")),
            calibrated_fm=_number(results.get("calibrated_forgetting")),
        )
    except UNREADABLE:
        return None


def read_divergence(folder: Path) -> str | None:
    """Where and how the run in a folder has diverged; ``None`` if it has not."""
    return _reason(folder, DIVERGED)


def read_stop(folder: Path) -> str | None:
    """Why the run in a folder has stopped at a task's end, as it was told to; ``None`` if it has not."""
    return _reason(folder, STOPPED)


def parse_results(content: bytes) -> Results:
    """Parse ``results.json``. A damaged file raises an error of almost any type."""
    results = json.loads(content.decode())
    matrix = [[math.nan if value is None else float(value) for value in row] for row in results["accuracy_matrix"]]
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise ValueError("the accuracy matrix must be a square")

    test = results.get("test") or {}
    measured_on = str(results.get("measured_on", "test"))

    def number(name: str, part: Mapping[str, Any] = results) -> float | None:
        value = part.get(name)
        return None if value is None or not math.isfinite(float(value)) else float(value)

    names = results.get("class_names")
    splits = {name: dict(facts) for name, facts in dict(results.get("data") or {}).items() if name in SPLITS and facts}
    plugin = results.get("plugin")
    return Results(
        method=str(results["method"]),
        plugin=None if plugin is None else str(plugin),
        dataset=str(results["dataset"]),
        buffer_size=int(results["buffer_size"]),
        seed=int(results["seed"]),
        acc=number("average_accuracy", test or results),
        fm=number("forgetting"),
        bwt=number("backward_transfer"),
        aaa=number("average_anytime_accuracy"),
        matrix=torch.tensor(matrix),
        tasks_finished=int(results["tasks_finished"]),
        seconds=number("seconds"),
        versions={str(package): str(version) for package, version in dict(results.get("versions", {})).items()},
        class_names=None if names is None else tuple(map(str, names)),
        divergence=str(results.get("reason")) if results.get("status") == DIVERGED else None,
        cpu_minutes=number("cpu_minutes"),
        statistics=str(results.get("statistics", "running")),
        calibrated_acc=number("calibrated_average_accuracy", test or results),
        calibrated_fm=number("calibrated_forgetting"),
        measured_on=measured_on,
        validation_acc=number("average_accuracy") if measured_on == "validation" else None,
        test_accuracies=tuple(map(_number, test.get("accuracies", ()))),
        task_il_acc=_task_il_acc(test or results),
        chosen_on_seeds=tuple(map(int, results.get("chosen_on_seeds") or ())),
        forgetting_definition={str(k): str(v) for k, v in dict(results.get("forgetting_definition") or {}).items()},
        num_images={name: sum(map(int, facts["images_per_class"])) for name, facts in splits.items()},
        image_shape=tuple(map(int, splits["train"]["image_shape"])) if "train" in splits else (),
        anytime=_numbers(results.get("anytime") or {}),
    )


def _task_il_acc(results: Mapping[str, Any]) -> float | None:
    """The recorded value; of results of 0.1, which have the matrix only, the mean of its last row."""
    if "task_il_average_accuracy" in results or "task_il_matrix" not in results:
        values = [results.get("task_il_average_accuracy")]
    else:
        values = results["task_il_matrix"][-1]
    numbers = [float(value) for value in values if value is not None]
    is_whole = len(numbers) == len(values) > 0 and all(map(math.isfinite, numbers))
    return sum(numbers) / len(numbers) if is_whole else None


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among some values."""
    return {str(k): float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def _reason(folder: Path, status: str) -> str | None:
    """The reason for a status; ``None`` if the run has another."""
    try:
        results = json.loads(read_regular(folder / RESULTS_FILE))
        return str(results["reason"]) if results["status"] == status else None
    except UNREADABLE:
        return None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
