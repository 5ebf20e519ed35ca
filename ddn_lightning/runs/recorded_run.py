"""A run read from its folder: results, configuration, curves, and the problems with them."""

import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy
from torch import Tensor

from ddn_lightning.runs.anytime import ANYTIME_FILE, AnytimeRecord, parse_anytime
from ddn_lightning.runs.config import flat, load_yaml
from ddn_lightning.runs.files import read_regular
from ddn_lightning.runs.observed import OBSERVATIONS_FILE, Observed, parse_observed
from ddn_lightning.runs.results import RESULTS_FILE, Results

CONFIG_FILE = "config.yaml"
CURVES_FILE = "metrics.csv"
TASK_ACCURACY = "val/accuracy/task_"  # of those learned so far
TASK_ENDS = "average_accuracy"  # a value that is logged at task ends only
Parsed = TypeVar("Parsed")
REQUIRED = {CONFIG_FILE: "not a run of ddn fit", RESULTS_FILE: "still training, or stopped before its end"}


@dataclass(frozen=True)
class Curve:
    """A logged value over training."""

    tasks_learned: Sequence[float]  # the x axis
    values: Sequence[float]


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run, as far as its folder can be read.

    Args:
        name: Name of the run.
        folder: The run folder.
        results: Its results, if any.
        config: Its configuration with dotted keys.
        rows: Rows of its curves.
        observed: Its observations at task ends, if any.
        problems: What is missing or unreadable, a sentence each.
        anytime: Its continual evaluation, if any.
    """

    name: str
    folder: Path
    results: Results | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, float]] = ()
    observed: Observed | None = None
    problems: Sequence[str] = ()
    anytime: AnytimeRecord | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all tasks are learned and evaluated."""
        results = self.results
        return results is not None and results.acc is not None and results.is_finished

    def curve(self, name: str) -> Curve:
        """A logged value over the number of tasks learned."""
        ends = [row for row in self.rows if TASK_ENDS in row]
        chosen = [row for row in self.rows if name in row]
        if not ends:
            return Curve([], [])
        learned = [
            sum(key.startswith(TASK_ACCURACY) for key in row) or place for place, row in enumerate(ends, start=1)
        ]
        steps = [row["step"] for row in chosen]
        places = numpy.interp(steps, [-1, *(row["step"] for row in ends)], [0, *learned])
        return Curve([round(float(place), 4) for place in places], [row[name] for row in chosen])

    @property
    def task_curves(self) -> list[Curve]:
        """Accuracy of each task over training; from the accuracy matrix if no curves were logged."""
        assert self.results is not None
        matrix = self.results.matrix
        logged = [self.curve(f"{TASK_ACCURACY}{task + 1}") for task in range(len(matrix))]
        if any(curve.values for curve in logged):
            return logged
        return curves_of(matrix)


def curves_of(matrix: Tensor) -> list[Curve]:
    """Accuracy of each task after each task learned, from an accuracy matrix."""
    stages = [[stage for stage in range(len(matrix)) if not matrix[stage, t].isnan()] for t in range(len(matrix))]
    return [
        Curve([stage + 1.0 for stage in known], [float(matrix[stage, task]) for stage in known])
        for task, known in enumerate(stages)
    ]


def read_run(folder: Path) -> RecordedRun:
    """Read a run folder. Missing and damaged files never raise; they are listed in ``problems``."""
    if not os.path.isdir(folder):  # Path.is_dir raises if a parent may not be entered
        return RecordedRun(folder.name, folder, problems=["is not a folder"])
    problems: list[str] = []
    config = _read(folder / CONFIG_FILE, _config, problems) or {}
    results = _read(folder / RESULTS_FILE, Results.from_json, problems)
    rows = _read(folder / CURVES_FILE, parse_curves, problems)
    observed = _read(folder / OBSERVATIONS_FILE, parse_observed, problems)
    anytime = _read(folder / ANYTIME_FILE, parse_anytime, problems) if results and results.anytime else None
    if results is not None and observed is not None and len(observed.is_class_of_task) != len(results.matrix):
        problems.append(
            f"has results of {len(results.matrix)} tasks, but observations of {len(observed.is_class_of_task)}"
        )
        observed = None
    if results is not None and results.divergence is not None:
        problems.append(f"has diverged: {results.divergence}")
    elif results is not None and results.tasks_finished < len(results.matrix):
        problems.append(f"has learned {results.tasks_finished} of its {len(results.matrix)} tasks")
    elif results is not None and results.acc is None:
        problems.append("was never evaluated")
    return RecordedRun(_name(folder, config), folder, results, config, rows or (), observed, problems, anytime)


def _name(folder: Path, config: Mapping[str, Any]) -> str:
    """The run's configured name, which may contain slashes; the folder's name if the run was moved."""
    name, path = config.get("name"), Path(os.path.realpath(folder))
    return name if isinstance(name, str) and path.as_posix().endswith(f"/{name}") else path.name


def _read(path: Path, parse: Callable[[bytes], Parsed], problems: list[str]) -> Parsed | None:
    try:
        return parse(read_regular(path))
    except FileNotFoundError:
        if path.name in REQUIRED:
            problems.append(f"has no {path.name}: {REQUIRED[path.name]}")
    except Exception as error:  # a damaged file raises many types of error
        reason = " ".join(str(error).split())[:200]
        problems.append(f"{path.name} cannot be read ({type(error).__name__}: {reason})")
    return None


def _config(content: bytes) -> dict[str, Any]:
    settings = flat(dict(load_yaml(content.decode()) or {}))
    json.dumps(settings, sort_keys=True, default=str)  # raises for keys that a report could not sort
    return settings


def parse_curves(content: bytes) -> list[dict[str, float]]:
    """The rows of ``metrics.csv`` as numbers, without truncated rows."""
    rows = []
    for line in csv.DictReader(content.decode().splitlines()):
        row = {name: float(value) for name, value in line.items() if name and value and _is_number(value)}
        if "step" in row:
            rows.append(row)
    return rows


def _is_number(text: object) -> bool:
    try:
        return math.isfinite(float(str(text)))
    except ValueError:
        return False
