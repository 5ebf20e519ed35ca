"""What a finished run has measured, read back from its folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddn_lightning.runs.files import read_regular

COMPLETE, INCOMPLETE, DIVERGED = "complete", "incomplete", "diverged"  # what the status in results.json may be


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


def read_result(folder: Path) -> RunResult | None:
    """The result of the run in a folder, or ``None`` unless it has learned all its tasks and has not diverged."""
    try:
        results = json.loads(read_regular(folder / "results.json"))
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
        results = json.loads(read_regular(folder / "results.json"))
        return str(results["reason"]) if results["status"] == DIVERGED else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # not there, or not what a run writes


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
