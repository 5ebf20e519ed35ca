"""``results.json``: the record of a run's results, written when the run ends."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.files import read_regular, write_text

RESULTS_FILE = "results.json"
MATRIX_FILE = "accuracy_matrix.csv"  # the same matrix, for spreadsheets
SCHEMA = 1  # version of the file's format
COMPLETE, INCOMPLETE, DIVERGED, STOPPED = "complete", "incomplete", "diverged", "stopped"  # values of "status"
UNREADABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
Matrix = Sequence[Sequence[float | None]]  # after each task, the accuracy of each task; None where not measured


@dataclass(frozen=True, eq=False)
class Results:
    """The contents of ``results.json``; accuracies in percent, ``None`` where nothing was measured.

    Args:
        status: ``complete``, ``incomplete``, ``stopped`` or ``diverged``.
        reason: Why it has stopped or diverged.
        method: Class name of the method.
        plugin: Class name of the distiller, if any.
        dataset: Name of the data.
        buffer_size: Samples that the memory holds.
        stored_bytes: Bytes of the stored samples and of what else the method keeps besides its network.
        seed: Seed.
        tasks_finished: Number of learned tasks.
        accuracy_matrix: Accuracy matrix.
        steps: Optimizer steps.
        seconds: Training time.
        cpu_minutes: Processor time of training.
        average_accuracy: ACC of the matrix.
        forgetting: FM.
        backward_transfer: BWT.
        average_anytime_accuracy: AAA.
        forgetting_definition: Arguments of :class:`Forgetting`.
        task_il_average_accuracy: ACC among the classes of each sample's task.
        task_il_matrix: The matrix of these accuracies.
        statistics: BatchNorm statistics of the evaluation: ``running``, ``memory`` or ``both``.
        calibrated_average_accuracy: ACC with calibrated statistics, if ``statistics`` is ``both``.
        calibrated_forgetting: FM with calibrated statistics.
        calibrated_accuracy_matrix: The matrix with calibrated statistics.
        measured_on: Images of the matrices: ``test`` or ``validation``.
        validation: The validation split, if any.
        test: Accuracies on the test images, if a run with a validation split has opened them.
        chosen_on_seeds: Seeds by which the settings were chosen.
        class_names: Names of the classes, if the data has any.
        data: The record of the data.
        versions: Versions of the packages.
        anytime: Measures and cost of a continual evaluation.
        evaluate_every_n_tasks: Tasks between two evaluations, if more than one.
        images_per_task: Images of each task that were measured, if not all.
    """

    status: str
    method: str
    dataset: str
    buffer_size: int
    seed: int
    tasks_finished: int
    accuracy_matrix: Matrix
    plugin: str | None = None
    reason: str | None = None
    steps: int = 0
    seconds: float | None = None
    cpu_minutes: float | None = None
    average_accuracy: float | None = None
    forgetting: float | None = None
    backward_transfer: float | None = None
    average_anytime_accuracy: float | None = None
    forgetting_definition: Mapping[str, str] = field(default_factory=dict)
    task_il_average_accuracy: float | None = None
    task_il_matrix: Matrix | None = None
    statistics: str = "running"
    calibrated_average_accuracy: float | None = None
    calibrated_forgetting: float | None = None
    calibrated_accuracy_matrix: Matrix | None = None
    measured_on: str = "test"
    validation: Mapping[str, Any] | None = None
    test: Mapping[str, Any] | None = None
    chosen_on_seeds: Sequence[int] = ()
    class_names: Sequence[str] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    anytime: Mapping[str, Any] = field(default_factory=dict)
    evaluate_every_n_tasks: int | None = None
    images_per_task: int | None = None
    stored_bytes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("accuracy_matrix", "task_il_matrix", "calibrated_accuracy_matrix"):
            _check_square(name, getattr(self, name) or [[None]])
        for entry in fields(self):
            if (kinds := KINDS.get(entry.type)) is not None:
                _check(entry.name, getattr(self, entry.name), kinds)
        for name, value in (self.test or {}).items():
            for number in value if isinstance(value, list) else [value]:
                _check(f"test/{name}", number, KINDS[float | None])

    def to_json(self) -> str:
        """The text of ``results.json``, with the version of its format."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> "Results":
        """The results in a file's text.

        Raises:
            ConfigurationError: If the file is of another format.
            ValueError, TypeError, LookupError: If it is damaged.
        """
        plain = dict(json.loads(text))
        if "schema" not in plain:  # an earlier version, which recorded more
            plain = {entry.name: plain[entry.name] for entry in fields(cls) if entry.name in plain}
        if (schema := plain.pop("schema", SCHEMA)) != SCHEMA:
            raise ConfigurationError(f"{RESULTS_FILE} must be of schema {SCHEMA}, got {schema}: of another version")
        names, seeds = plain.get("class_names"), plain.get("chosen_on_seeds") or ()
        plain["class_names"] = None if names is None else tuple(map(str, names))
        return cls(**{**plain, "chosen_on_seeds": tuple(map(int, seeds))})

    @property
    def is_finished(self) -> bool:
        """Whether all tasks are learned, without divergence."""
        return self.status != DIVERGED and self.tasks_finished >= len(self.accuracy_matrix)

    @property
    def divergence(self) -> str | None:
        """Where and how training diverged, if it did."""
        return str(self.reason) if self.status == DIVERGED else None

    @property
    def acc(self) -> float | None:
        """Average accuracy: on the test images, unless a run with a validation split never opened them."""
        return self._opened("average_accuracy")

    @property
    def calibrated_acc(self) -> float | None:
        """The same with calibrated BatchNorm statistics."""
        return self._opened("calibrated_average_accuracy")

    @property
    def task_il_acc(self) -> float | None:
        """The same among the classes of each sample's task."""
        return self._opened("task_il_average_accuracy")

    @property
    def per_task(self) -> tuple[float | None, ...]:
        """Final accuracy of each task, on the images of ``acc``."""
        return tuple(self.accuracy_matrix[-1] if self.test is None else self.test["accuracies"])

    @property
    def fm(self) -> float | None:
        """Forgetting."""
        return self.forgetting

    @property
    def calibrated_fm(self) -> float | None:
        """Forgetting with calibrated BatchNorm statistics."""
        return self.calibrated_forgetting

    @property
    def aaa(self) -> float | None:
        """Average anytime accuracy."""
        return self.average_anytime_accuracy

    @cached_property
    def matrix(self) -> Tensor:
        """The accuracy matrix; ``nan`` where nothing was measured."""
        rows = [[math.nan if value is None else value for value in row] for row in self.accuracy_matrix]
        return torch.tensor(rows, dtype=torch.float32)

    @property
    def acc_measured_on(self) -> str:
        """The images of ``acc``: test or validation."""
        return self.measured_on if self.test is None else "test"

    @property
    def measures(self) -> str:
        """The images of each measure, for a run with a validation split; empty for any other."""
        if self.measured_on == "test":
            return ""
        others = "FM, AAA (validation)"
        return f"ACC, task-IL ACC, {others}" if self.test is None else f"ACC, task-IL ACC (test), {others}"

    @property
    def title(self) -> str:
        """Method and distiller."""
        return self.method if self.plugin is None else f"{self.method} + {self.plugin}"

    @property
    def num_images(self) -> dict[str, int]:
        """Number of images by split, as far as the data was loaded."""
        return {name: sum(facts["images_per_class"]) for name in ("train", "test") if (facts := self.data.get(name))}

    def _opened(self, name: str) -> float | None:
        return getattr(self, name) if self.test is None else self.test.get(name)


KINDS: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    str | None: (str, type(None)),
    float | None: (int, float, type(None)),
    Mapping[str, str]: (dict,),
    Mapping[str, Any]: (dict,),
    Mapping[str, Any] | None: (dict, type(None)),
}


def write_results(folder: Path, results: Results) -> None:
    """Write ``results.json``, and its accuracy matrix as CSV."""
    write_text(folder / RESULTS_FILE, results.to_json())
    matrix = results.accuracy_matrix
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["after_task", *(f"task_{task + 1}" for task in range(len(matrix)))])
    writer.writerows([number, *row] for number, row in enumerate(matrix, start=1))
    write_text(folder / MATRIX_FILE, table.getvalue())


def read_results(folder: Path) -> Results | None:
    """The results in a run folder; ``None`` if there are none, or none that can be read."""
    try:
        return Results.from_json(read_regular(folder / RESULTS_FILE))
    except (*UNREADABLE, ConfigurationError):
        return None


def read_result(folder: Path) -> Results | None:
    """The results of a run that has learned all its tasks; ``None`` if it has not, or has diverged."""
    results = read_results(folder)
    return results if results is not None and results.is_finished else None


def read_divergence(folder: Path) -> str | None:
    """Where and how the run in a folder has diverged; ``None`` if it has not."""
    results = read_results(folder)
    return None if results is None else results.divergence


def read_stop(folder: Path) -> str | None:
    """Why the run in a folder has stopped at a task's end, as it was told to; ``None`` if it has not."""
    results = read_results(folder)
    return str(results.reason) if results is not None and results.status == STOPPED else None


def _check_square(name: str, matrix: Matrix) -> None:
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise ValueError(f"{name} must be a square")
    for row in matrix:
        for value in row:
            _check(name, value, KINDS[float | None])


def _check(name: str, value: object, kinds: tuple[type, ...]) -> None:
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, kinds) or isinstance(value, bool) or not is_finite:
        raise ValueError(f"{name} must be of {' or '.join(kind.__name__ for kind in kinds)}, got {value!r:.60}")
