"""What a finished run has measured, read back from its folder."""

import json
from dataclasses import dataclass
from pathlib import Path

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
        results = json.loads((folder / "results.json").read_text())
        matrix = results["accuracy_matrix"]
        if results["tasks_finished"] < len(matrix) or results.get("status") == DIVERGED:
            return None
        return RunResult(results["average_accuracy"], results["forgetting"], tuple(matrix[-1]))
    except (OSError, ValueError, LookupError, TypeError):  # not there, or not what a run writes
        return None


def read_divergence(folder: Path) -> str | None:
    """Where and how the run in a folder has diverged, or ``None`` unless it has."""
    try:
        results = json.loads((folder / "results.json").read_text())
        return str(results["reason"]) if results["status"] == DIVERGED else None
    except (OSError, ValueError, LookupError, TypeError):  # not there, or not what a run writes
        return None
