"""``anytime.csv``: the accuracies of a continual evaluation."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ddn_lightning.runs.files import write_text

ANYTIME_FILE = "anytime.csv"
COLUMNS = ("step", "task", "samples", "average_accuracy")  # and one for each task
UNTRAINED = -1  # the task of the evaluation before the first batch


@dataclass(frozen=True)
class Evaluation:
    """One evaluation; accuracies in percent, ``nan`` for tasks that were not measured."""

    step: int  # batches trained on
    task: int  # the task being trained, counted from 0
    samples: int  # incoming samples trained on
    accuracies: tuple[float, ...]  # of each task

    @property
    def average_accuracy(self) -> float:
        """Mean over the tasks seen."""
        seen = [value for value in self.accuracies[: self.task + 1] if value == value]
        return sum(seen) / len(seen) if seen else math.nan


@dataclass(frozen=True, eq=False)
class AnytimeRecord:
    """All evaluations of a run, in their order."""

    evaluations: Sequence[Evaluation]

    @property
    def steps(self) -> Tensor:
        """Batches trained on before each evaluation."""
        return torch.tensor([one.step for one in self.evaluations])

    @property
    def tasks(self) -> Tensor:
        """The task being trained at each evaluation."""
        return torch.tensor([one.task for one in self.evaluations])

    @property
    def accuracies(self) -> Tensor:
        """Accuracy of each task (evaluations, tasks), ``nan`` where not measured."""
        return torch.tensor([one.accuracies for one in self.evaluations], dtype=torch.float64)

    @property
    def switches(self) -> list[int]:
        """The step at which each task but the first begins."""
        ends = {one.task: one.step for one in self.evaluations if one.task != UNTRAINED}
        return [ends[task] for task in sorted(ends)][:-1]


def write_anytime(folder: Path, record: AnytimeRecord) -> None:
    """Write ``anytime.csv``; tasks are counted from 1, and 0 is before the first batch."""
    table = io.StringIO()
    writer = csv.writer(table)
    number = len(record.evaluations[0].accuracies) if record.evaluations else 0
    writer.writerow([*COLUMNS, *(f"task_{task + 1}" for task in range(number))])
    for one in record.evaluations:
        cells = ["" if value != value else round(value, 4) for value in (one.average_accuracy, *one.accuracies)]
        writer.writerow([one.step, one.task + 1, one.samples, *cells])
    write_text(folder / ANYTIME_FILE, table.getvalue())


def parse_anytime(content: bytes) -> AnytimeRecord:
    """Parse ``anytime.csv``. A damaged file raises an error of almost any type."""
    header, *rows = csv.reader(content.decode().splitlines())
    if tuple(header[: len(COLUMNS)]) != COLUMNS or not rows:
        raise ValueError("it must have evaluations")
    evaluations = []
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row must have {len(header)} values, got {len(row)}")
        accuracies = tuple(float(value) if value else math.nan for value in row[len(COLUMNS) :])
        if any(math.isinf(value) for value in accuracies) or not 0 <= int(row[1]) <= len(accuracies):
            raise ValueError(f"a row must have a task and its accuracies, got {row}")
        evaluations.append(Evaluation(int(row[0]), int(row[1]) - 1, int(row[2]), accuracies))
    return AnytimeRecord(evaluations)
