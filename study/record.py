"""Appends finished runs to ``measured.csv``: ``python -m study.record JOBS.jsonl --runs runs``.

A line of a file of jobs is a JSON object with ``name``, the run's folder; ``group``, the first columns of
``measured.csv`` from ``data`` to ``options``; ``seed``; and ``cmd``, the arguments of ``ddn`` that repeat the run. Jobs
without a finished run, and runs that have a row, are left out.
"""

import argparse
import csv
import io
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddn_lightning.report.names import METHODS, method_key
from ddn_lightning.runs.config import read_settings
from ddn_lightning.runs.recorded_run import CONFIG_FILE
from ddn_lightning.runs.results import COMPLETE, Results, read_results
from study.measured import MEASURED

GROUP = ("data", "network", "setting", "buffer_size", "method", "plugin", "options")
COLUMNS = (
    *(*GROUP, "seed", "acc", "fm", "per_task", "calibrated_acc", "calibrated_fm", "cpu_minutes", "command"),
    *("matrix", "calibrated_matrix", "version"),
)


@dataclass(frozen=True)
class Job:
    """A run to record.

    Args:
        name: Name of its folder.
        group: The values of :data:`GROUP`.
        seed: Its seed.
        arguments: The arguments of ``ddn`` that repeat it.
    """

    name: str
    group: tuple[str, ...]
    seed: int
    arguments: tuple[str, ...]


def read_jobs(text: str) -> list[Job]:
    """The jobs in the lines of a file."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [Job(job["name"], tuple(map(str, job["group"])), job["seed"], tuple(job["cmd"])) for job in lines]


def row_of(folder: Path, job: Job) -> dict[str, str] | None:
    """The row of a run, or ``None`` if it has not learned all its tasks.

    Raises:
        ValueError: If the folder has the run of another job.
    """
    results = read_results(folder)
    if results is None or results.status != COMPLETE:
        return None
    _check(folder, job, results)
    measured = {
        "seed": str(job.seed),
        "acc": _number(results.average_accuracy),
        "fm": _number(results.forgetting),
        "per_task": _numbers(results.accuracy_matrix[-1]),
        "calibrated_acc": _number(results.calibrated_average_accuracy),
        "calibrated_fm": _number(results.calibrated_forgetting),
        "cpu_minutes": _number(results.cpu_minutes),
        "command": shlex.join(["ddn", *job.arguments]),
        "matrix": _matrix(results.accuracy_matrix),
        "calibrated_matrix": _matrix(results.calibrated_accuracy_matrix or []),
        "version": results.versions["ddn-lightning"],
    }
    return {**dict(zip(GROUP, job.group, strict=True)), **measured}


def record(jobs: Iterable[Job], runs: Path, table: Path = MEASURED) -> list[str]:
    """Append the rows of finished runs that the table does not have; returns the names of the runs.

    Args:
        jobs: The jobs.
        runs: Parent of the run folders.
        table: The CSV file.
    """
    text = table.read_text(encoding="utf-8")
    known = {_key(row) for row in csv.DictReader(io.StringIO(text))}
    new = io.StringIO()
    writer = csv.DictWriter(new, COLUMNS, lineterminator="\n")
    added = []
    for job in jobs:
        row = row_of(runs / job.name, job)
        if row is not None and _key(row) not in known:
            writer.writerow(row)
            known.add(_key(row))
            added.append(job.name)
    table.write_text(text + new.getvalue(), encoding="utf-8", newline="")
    return added


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m study.record", description=__doc__)
    parser.add_argument("jobs", type=Path, nargs="+", help="files of jobs")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="parent of the run folders")
    parser.add_argument("--table", type=Path, default=MEASURED, help="the CSV file")
    given = parser.parse_args(arguments)
    jobs = [job for path in given.jobs for job in read_jobs(path.read_text(encoding="utf-8"))]
    added = record(jobs, given.runs, given.table)
    print("\n".join([*added, f"{len(added)} of {len(jobs)} jobs recorded in {given.table}"]))


def _check(folder: Path, job: Job, results: Results) -> None:
    """Raise if a run's seed, memory, method or network is not that of its job."""
    names = dict(zip(GROUP, job.group, strict=True))
    model = read_settings(folder / CONFIG_FILE)["model"]
    width = model["init_args"]["backbone"].get("init_args", {}).get("width")
    expected: dict[str, object] = {"seed": job.seed, "buffer size": int(names["buffer_size"])}
    found: dict[str, object] = {"seed": results.seed, "buffer size": results.buffer_size}
    if results.method in METHODS:  # a class of the study goes by the method that it changes
        expected["method"], found["method"] = names["method"], method_key(results.method)
    if " width " in names["network"]:
        expected["width"], found["width"] = names["network"].split()[2], str(width)
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"{folder} must be the run of its job with {name} {value}, got {found[name]}")


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in (*GROUP, "seed"))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _numbers(values: Sequence[float | None]) -> str:
    return " ".join(map(_number, values))


def _matrix(rows: Sequence[Sequence[float | None]]) -> str:
    """The accuracies after each task, of the tasks seen.

    >>> _matrix([[98.6, None], [97.2, 95.8]])
    '98.60; 97.20 95.80'
    """
    return "; ".join(_numbers(row[: number + 1]) for number, row in enumerate(rows))


if __name__ == "__main__":
    main()
