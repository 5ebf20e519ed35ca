"""What we have measured ourselves, run by run, and the table that the README shows of it."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from ddn_lightning.report.statistic import statistic

CHOOSING_SEEDS = range(6)  # readings are chosen by these seeds' test accuracy, so results are never reported on them


@dataclass(frozen=True)
class MeasuredRun:
    """One line of ``measured.csv``.

    Args:
        test_bed: Data, network and setting.
        method: Method.
        plugin: Plug-in, or ``none``.
        options: Options by which runs of one method differ.
        seed: Seed.
        acc: Average accuracy in percent.
        fm: Forgetting in percent, or ``None`` where it means nothing.
        per_task: Final accuracy of each task.
        cpu_minutes: What it took.
        command: What repeats it.
    """

    test_bed: str
    method: str
    plugin: str
    options: str
    seed: int
    acc: float
    fm: float | None
    per_task: tuple[float, ...]
    cpu_minutes: float
    command: str

    @property
    def group(self) -> tuple[str, str, str, str]:
        """What runs must have in common to be averaged."""
        return self.test_bed, self.method, self.plugin, self.options


def measured_runs(text: str | None = None) -> list[MeasuredRun]:
    """The runs in the text of a CSV file, by default of the one that comes with the package."""
    if text is None:
        text = (files("ddn_lightning.report") / "measured.csv").read_text(encoding="utf-8")
    return [
        MeasuredRun(
            test_bed=row["test_bed"],
            method=row["method"],
            plugin=row["plugin"],
            options=row["options"],
            seed=int(row["seed"]),
            acc=float(row["acc"]),
            fm=float(row["fm"]) if row["fm"] else None,
            per_task=tuple(map(float, row["per_task"].split())),
            cpu_minutes=float(row["cpu_minutes"]),
            command=row["command"],
        )
        for row in csv.DictReader(text.splitlines())
    ]


def measured_table(runs: Sequence[MeasuredRun]) -> str:
    """Mean ± standard deviation (n) over the seeds as Markdown, with the command of each group's first seed.

    Groups stand in the order of their first run; runs that served for choosing are left out, and without any others
    there is no table.
    """
    runs = [run for run in runs if run.seed not in CHOOSING_SEEDS]
    if not runs:
        return ""
    lines = [
        "| test bed | method | plug-in | options | ACC ↑ | FM ↓ | CPU minutes | command |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(run.group for run in runs):
        members = [run for run in runs if run.group == group]
        fm = statistic(run.fm for run in members)
        minutes = statistic(run.cpu_minutes for run in members)
        assert minutes is not None
        cells = [*group, statistic(run.acc for run in members), "-" if fm is None else fm, f"{minutes.mean:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} | `{min(members, key=lambda run: run.seed).command}` |")
    return "\n".join(lines) + "\n"
