"""``results.json``: what a run writes when it ends, and what is read from it."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.runs.files import read_regular, write_text

RESULTS_FILE = "results.json"
MATRIX_FILE = "accuracy_matrix.csv"  # a part of it, for spreadsheets
COMPLETE, INCOMPLETE, DIVERGED = "complete", "incomplete", "diverged"  # what its status may be


@dataclass(frozen=True, eq=False)
class Results:
    """What stands in ``results.json``; accuracies in percent, ``None`` or ``nan`` where nothing was measured.

    Args:
        method: Class of the method.
        plugin: Class of its distiller; ``None`` for the method alone.
        dataset: Name of the data.
        buffer_size: Samples that the memory holds.
        seed: Seed.
        acc: Average accuracy.
        fm: Forgetting.
        bwt: Backward transfer.
        aaa: Average anytime accuracy.
        matrix: The accuracy matrix.
        tasks_finished: Tasks learned.
        seconds: What training took.
        versions: Of the packages it was made with.
        class_names: Names of the classes, where the data has any.
        divergence: Where and how it has diverged, if it has.
        cpu_minutes: Processor time of training.
        statistics: BatchNorm statistics it was evaluated with: ``running``, ``memory`` or ``both``.
        calibrated_acc: Average accuracy with calibrated BatchNorm statistics, where it was measured besides.
        calibrated_fm: Forgetting with them.
    """

    method: str
    plugin: str | None
    dataset: str
    buffer_size: int
    seed: int
    acc: float | None
    fm: float | None
    bwt: float | None
    aaa: float | None
    matrix: Tensor
    tasks_finished: int
    seconds: float | None
    versions: Mapping[str, str]
    class_names: tuple[str, ...] | None
    divergence: str | None = None
    cpu_minutes: float | None = None
    statistics: str = "running"
    calibrated_acc: float | None = None
    calibrated_fm: float | None = None

    @property
    def title(self) -> str:
        """Method and plug-in."""
        return self.method if self.plugin is None else f"{self.method} + {self.plugin}"


@dataclass(frozen=True)
class RunResult:
    """The numbers of one run, in percent; ``None`` where nothing was measured.

    Args:
        acc: Average accuracy over all tasks at the end.
        fm: Forgetting.
        per_task: Accuracy of each task at the end.
    """

    acc: float | None
    fm: float | None
    per_task: tuple[float | None, ...] = ()


def write_results(folder: Path, results: Mapping[str, Any]) -> None:
    """Write ``results.json``, and its accuracy matrix as a table."""
    write_text(folder / RESULTS_FILE, json.dumps(results, indent=2) + "\n")
    matrix = results["accuracy_matrix"]
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["after_task", *(f"task_{task + 1}" for task in range(len(matrix)))])
    writer.writerows([number, *row] for number, row in enumerate(matrix, start=1))
    write_text(folder / MATRIX_FILE, table.getvalue())


def read_result(folder: Path) -> RunResult | None:
    """The result of the run in a folder, or ``None`` unless it has learned all its tasks and has not diverged."""
    try:
        results = json.loads(read_regular(folder / RESULTS_FILE))
        matrix = results["accuracy_matrix"]
        if results["tasks_finished"] < len(matrix) or results.get("status") == DIVERGED:
            return None
        return RunResult(
            _number(results["average_accuracy"]), _number(results["forgetting"]), tuple(map(_number, matrix[-1]))
        )
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None  # not there, or not what a run writes


def read_divergence(folder: Path) -> str | None:
    """Where and how the run in a folder has diverged, or ``None`` unless it has."""
    try:
        results = json.loads(read_regular(folder / RESULTS_FILE))
        return str(results["reason"]) if results["status"] == DIVERGED else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # not there, or not what a run writes


def parse_results(content: bytes) -> Results:
    """What ``results.json`` holds. A damaged file raises an error of almost any kind."""
    results = json.loads(content.decode())
    matrix = [[math.nan if value is None else float(value) for value in row] for row in results["accuracy_matrix"]]
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise ValueError("the accuracy matrix must be a square")

    def number(name: str) -> float | None:
        value = results.get(name)
        return None if value is None or not math.isfinite(float(value)) else float(value)

    names = results.get("class_names")
    plugin = results.get("plugin")
    return Results(
        method=str(results["method"]),
        plugin=None if plugin is None else str(plugin),
        dataset=str(results["dataset"]),
        buffer_size=int(results["buffer_size"]),
        seed=int(results["seed"]),
        acc=number("average_accuracy"),
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
        calibrated_acc=number("calibrated_average_accuracy"),
        calibrated_fm=number("calibrated_forgetting"),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
