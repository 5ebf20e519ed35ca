"""What we have measured ourselves, run by run, and the table that the README shows of it."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from ddn_lightning.names import title_of
from ddn_lightning.report.paper import Cell, paper_targets
from ddn_lightning.report.statistic import statistic

CHOOSING_SEEDS = range(6)  # readings are chosen by these seeds' test accuracy, so results are never reported on them
COLUMNS = (
    *("data", "network", "setting", "M", "method", "ACC ↑", "paper", "FM ↓", "paper", "to alone", "to hard"),
    *("calibrated ACC ↑", "calibrated FM ↓", "CPU min"),
)
HARD_CONTROL = "old_memory_weight=1"  # the same rehearsal as a distiller's, with hard labels


@dataclass(frozen=True)
class Group:
    """What runs have in common that are averaged.

    Args:
        data: Dataset; where its images were resized, with their size, as ``cifar10@16``.
        network: Network, such as ``ResNet18 width 20``.
        setting: ``online`` or ``offline``.
        buffer_size: Samples that the memory holds.
        method: Method.
        plugin: Plug-in, or ``none``.
        options: Options by which runs of one method differ.
    """

    data: str
    network: str
    setting: str
    buffer_size: int
    method: str
    plugin: str
    options: str

    @property
    def test_bed(self) -> tuple[str, str, str, int]:
        """What groups must have in common to be compared."""
        return self.data, self.network, self.setting, self.buffer_size


@dataclass(frozen=True)
class MeasuredRun:
    """One line of ``measured.csv``.

    Args:
        group: What was run.
        seed: Seed.
        acc: Average accuracy in percent.
        fm: Forgetting in percent, or ``None`` where it means nothing.
        per_task: Final accuracy of each task.
        calibrated_acc: Average accuracy with calibrated BatchNorm statistics, or ``None`` where it was not measured.
        calibrated_fm: Forgetting with calibrated BatchNorm statistics, likewise.
        cpu_minutes: What it took, or ``None`` where that was not recorded.
        command: What repeats it.
    """

    group: Group
    seed: int
    acc: float
    fm: float | None
    per_task: tuple[float, ...]
    calibrated_acc: float | None
    calibrated_fm: float | None
    cpu_minutes: float | None
    command: str


def measured_runs(text: str | None = None) -> list[MeasuredRun]:
    """The runs in the text of a CSV file, by default of the one that comes with the package."""
    if text is None:
        text = (files("ddn_lightning.report") / "measured.csv").read_text(encoding="utf-8")
    return [
        MeasuredRun(
            group=Group(
                row["data"],
                row["network"],
                row["setting"],
                int(row["buffer_size"]),
                row["method"],
                row["plugin"],
                row["options"],
            ),
            seed=int(row["seed"]),
            acc=float(row["acc"]),
            fm=_number(row["fm"]),
            per_task=tuple(map(float, row["per_task"].split())),
            calibrated_acc=_number(row["calibrated_acc"]),
            calibrated_fm=_number(row["calibrated_fm"]),
            cpu_minutes=_number(row["cpu_minutes"]),
            command=row["command"],
        )
        for row in csv.DictReader(text.splitlines())
    ]


def measured_table(runs: Sequence[MeasuredRun]) -> str:
    """Mean ± standard deviation (n) over the seeds as Markdown, beside the paper's, and the commands below.

    The differences ``to`` others are in ACC, on the same seeds, with their standard error: to the method alone, and
    to its control with the same rehearsal and hard labels. Groups stand in the order of their first run; runs that
    served for choosing are left out, and without any others there is no table.
    """
    runs = [run for run in runs if run.seed not in CHOOSING_SEEDS]
    if not runs:
        return ""
    groups: dict[Group, list[MeasuredRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for group, members in groups.items():
        minutes = statistic(run.cpu_minutes for run in members)
        paper_acc, paper_fm = _paper_numbers(group)
        cells = [
            *group.test_bed,
            _title(group),
            statistic(run.acc for run in members),
            paper_acc,
            statistic(run.fm for run in members),
            paper_fm,
            paired_difference(members, groups.get(replace(group, plugin="none", options=""), [])),
            paired_difference(members, groups.get(replace(group, plugin="none", options=HARD_CONTROL), [])),
            statistic(run.calibrated_acc for run in members),
            statistic(run.calibrated_fm for run in members),
            None if minutes is None else f"{minutes.mean:.1f}",
        ]
        lines.append(f"| {' | '.join('-' if cell is None else str(cell) for cell in cells)} |")
    commands = [min(members, key=lambda run: run.seed).command for members in groups.values()]
    seeds = " ".join(map(str, sorted({run.seed for run in runs})))
    folded = ["<details>", "<summary>The command of each row's first seed</summary>", ""]
    folded += ["```bash", *commands, "```", "", "</details>"]
    return "\n".join([*lines, "", f"Seeds {seeds}.", "", *folded]) + "\n"


def paired_difference(runs: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> str | None:
    """By how much the accuracy is above that of others on the same seeds: mean ± standard error (n).

    ``None`` where there is nothing to compare with.
    """
    accuracies = {run.seed: run.acc for run in others}
    differences = statistic(run.acc - accuracies[run.seed] for run in runs if run.seed in accuracies)
    if differences is None or runs[0].group == others[0].group:
        return None
    error = "" if differences.std is None else f" ± {differences.std / math.sqrt(differences.n):.2f}"
    return f"{differences.mean:+.2f}{error} ({differences.n})"


def _number(text: str) -> float | None:
    return float(text) if text else None


def _title(group: Group) -> str:
    title = title_of(group.method, group.plugin)
    return f"{title}, {group.options}" if group.options else title


def _paper_numbers(group: Group) -> tuple[float | None, float | None]:
    """The paper's for the cell that a group repeats: one with options of its own repeats none."""
    cell = Cell(group.setting, group.data, group.buffer_size, group.method, group.plugin)
    target = paper_targets().get(cell)
    return (None, None) if target is None or group.options else (target.acc, target.fm)
