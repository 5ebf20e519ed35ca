"""How the runs of a trial ended, and the thresholds below which a trial is pruned."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.files import read_regular
from ddn_lightning.runs.results import RESULTS_FILE, UNREADABLE, read_divergence

State = Literal["complete", "pruned", "diverged"]
STATES: tuple[State, ...] = ("complete", "pruned", "diverged")
CHOOSES = "validation"  # what a trial must be measured on
DIVERGED_SCORE = 0.0
FEWEST_COMPLETE = 5  # trials before any is pruned, as in Optuna's MedianPruner
FIRST_PRUNED = 1  # task, from 0: after the first one, nothing can be forgotten yet


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or a trial: the mean over its runs.

    Args:
        state: ``pruned`` if it was stopped before the last task of the protocol.
        curve: ACC over the tasks so far after each task, in percent, on validation images.
    """

    state: State
    curve: tuple[float, ...]

    @property
    def score(self) -> float:
        """ACC at the end, also of a pruned run; 0 for a diverged one."""
        return DIVERGED_SCORE if self.state == "diverged" else self.curve[-1]


def read_outcome(folder: Path, tasks: int | None) -> Outcome:
    """How the run in a folder ended.

    Args:
        folder: The run folder.
        tasks: Number of tasks of the protocol; ``None`` for all.

    Raises:
        ConfigurationError: If it was not measured on validation images, or not after every task.
    """
    path = folder / RESULTS_FILE
    try:
        results = json.loads(read_regular(path))
        matrix, finished = results["accuracy_matrix"], int(results["tasks_finished"])
        rows = [row[: task + 1] for task, row in enumerate(matrix[:finished])]
        measured_on = "test" if results.get("test") is not None else results.get("measured_on", "test")
    except UNREADABLE as error:
        raise ConfigurationError(f"{path} must hold the results of a trial: {error}") from error
    if measured_on != CHOOSES:
        raise ConfigurationError(
            f"{path} must be measured on {CHOOSES} images alone, or others would choose, got {measured_on}"
        )
    has_diverged = read_divergence(folder) is not None
    if not has_diverged and (not rows or any(value is None for row in rows for value in row)):
        raise ConfigurationError(f"{path} must have an accuracy after each task, got {rows}")
    curve = tuple(round(fmean(row), 4) for row in rows if None not in row)
    is_complete = finished >= min(len(matrix), tasks or len(matrix))
    return Outcome("diverged" if has_diverged else "complete" if is_complete else "pruned", curve)


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a trial with these runs: the worst state, and the mean curve as far as all runs went.

    >>> mean_outcome([Outcome("complete", (90.0, 60.0)), Outcome("pruned", (80.0,))])
    Outcome(state='pruned', curve=(85.0,))
    """
    state = max((outcome.state for outcome in outcomes), key=STATES.index)
    means = zip(*(outcome.curve for outcome in outcomes), strict=False)
    return Outcome(state, tuple(round(fmean(values), 4) for values in means))


def thresholds(curves: Sequence[Sequence[float]]) -> list[float | None]:
    """ACC after each task below which a run is pruned: the median of the complete runs with its seed.

    Optuna's MedianPruner would compare a trial's best value so far, which is ACC after the first task: ACC falls as
    tasks are added, and nothing would be pruned. Here, values after the same task are compared.

    Args:
        curves: ACC after each task of the complete runs.

    >>> thresholds([(99.0, 60.0, 40.0), (99.0, 62.0, 41.0), (98.0, 70.0, 50.0), (99.0, 64.0, 42.0), (99.0, 66.0, 43.0)])
    [None, 64.0]
    """
    if len(curves) < FEWEST_COMPLETE:
        return []
    by_task = list(zip(*curves, strict=True))[:-1]  # after the last task nothing is left to save
    return [None if task < FIRST_PRUNED else median(values) for task, values in enumerate(by_task)]
