"""What we have measured ourselves, run by run, and the table that the README shows of it."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ddn_lightning.names import title_of
from ddn_lightning.report.seed_group import STATISTICS, Statistics
from ddn_lightning.report.statistic import FEWEST_SEEDS, Estimate, estimate, paired_difference
from ddn_lightning.report.tables import as_ranges
from study.paper import Cell, paper_targets

MEASURED = Path(__file__).with_name("measured.csv")
CHOOSING_SEEDS = range(6)  # readings are chosen by these seeds' test accuracy, so results are never reported on them
COLUMNS = ("method", "seeds", "ACC ↑", "FM ↓", "paper", "ACC to alone", "FM to alone", "ACC to hard", "CPU min")
Measure = Literal["acc", "fm"]
Matrix = tuple[tuple[float, ...], ...]  # after each task, the accuracy of each seen task
MEASURES: tuple[Measure, ...] = ("acc", "fm")
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
        matrix: The accuracy matrix with running statistics; empty where it was not recorded.
        calibrated_matrix: The accuracy matrix with calibrated statistics, likewise.
        version: Version of this package, or empty where it was not recorded.
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
    matrix: Matrix = ()
    calibrated_matrix: Matrix = ()
    version: str = ""

    def value(self, measure: Measure, statistics: Statistics) -> float | None:
        """ACC or FM with these BatchNorm statistics, or ``None`` where that was not measured."""
        if statistics == "running":
            return self.acc if measure == "acc" else self.fm
        return self.calibrated_acc if measure == "acc" else self.calibrated_fm


def measured_runs(text: str | None = None) -> list[MeasuredRun]:
    """The runs in the text of a CSV file, by default of :data:`MEASURED`."""
    if text is None:
        text = MEASURED.read_text(encoding="utf-8")
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
            matrix=_matrix(row.get("matrix")),
            calibrated_matrix=_matrix(row.get("calibrated_matrix")),
            version=row.get("version") or "",
        )
        for row in csv.DictReader(text.splitlines())
    ]


def reported(runs: Sequence[MeasuredRun]) -> dict[Group, list[MeasuredRun]]:
    """The runs by group, in the order of each group's first, without those that served for choosing."""
    groups: dict[Group, list[MeasuredRun]] = {}
    for run in runs:
        if run.seed not in CHOOSING_SEEDS:
            groups.setdefault(run.group, []).append(run)
    return groups


def measured_table(runs: Sequence[MeasuredRun]) -> str:
    """Mean ± standard deviation over the seeds as Markdown: a table for each test bed, and its first row's command.

    ER comes first, then the other methods by name. A group has a row for each kind of statistics that it was evaluated
    with. The differences ``to`` others are taken on the same seeds with the same statistics, with their 95 % interval:
    to the method alone, and to its control with the same rehearsal and hard labels. The method alone with calibrated
    statistics is held against itself without. Runs that served for choosing are left out, and without any others there
    is no table.
    """
    groups = reported(runs)
    by_method = sorted(groups, key=lambda group: (group.method != "er", title_of(group.method).casefold()))
    parts = []
    for bed in dict.fromkeys(group.test_bed for group in groups):
        data, network, setting, buffer_size = bed
        lines = [f"**{data}, {network}, {setting}, M = {buffer_size}**", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        members = [group for group in by_method if group.test_bed == bed]
        for group in members:
            lines += [_row(group, kind, groups) for kind in STATISTICS if _values(groups[group], "acc", kind)]
        parts.append("\n".join([*lines, "", "```bash", *command_lines(groups[members[0]][0].command), "```"]))
    return "\n\n".join(parts) + "\n" if parts else ""


def command_lines(command: str, width: int = 100) -> list[str]:
    r"""Break a command into lines that fit a page; an option and its value stay together.

    >>> command_lines("ddn fit -c base.yaml --model ER", width=20)
    ['ddn fit \\', '    -c base.yaml \\', '    --model ER']
    """
    first, *words = re.split(r" (?=-)", command)
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) + 3 <= width:  # a blank before it, a blank and a backslash after it
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def difference(
    groups: Mapping[Group, Sequence[MeasuredRun]],
    group: Group,
    other: Group,
    measure: Measure,
    kinds: tuple[Statistics, Statistics],
) -> Estimate | None:
    """By how much a measure of a group is above that of another on the same seeds.

    Args:
        groups: Runs by group.
        group: One of them.
        other: What to subtract; ``None`` comes back where it is missing.
        measure: What to compare.
        kinds: BatchNorm statistics of either.
    """
    values = _values(groups[group], measure, kinds[0])
    return paired_difference(values, _values(groups.get(other, []), measure, kinds[1]))


def interval(value: Estimate | None) -> str:
    """A difference with its 95 % interval, as far as there are seeds enough for one.

    >>> interval(estimate([1.0, 2.0, 3.0])), interval(estimate([1.0, 2.0])), interval(None)
    ('+2.00 [-0.48, +4.48] (3)', '+1.50 (2)', '-')
    """
    if value is None:
        return "-"
    if value.low is None or value.high is None or value.n < FEWEST_SEEDS:
        return f"{value.mean:+.2f} ({value.n})"
    return f"{value.mean:+.2f} [{value.low:+.2f}, {value.high:+.2f}] ({value.n})"


def _row(group: Group, kind: Statistics, groups: Mapping[Group, Sequence[MeasuredRun]]) -> str:
    members = groups[group]
    alone = replace(group, plugin="none", options="")
    hard = replace(group, plugin="none", options=HARD_CONTROL)
    is_alone = group == alone
    to_alone: tuple[Statistics, Statistics] = (kind, "running" if is_alone else kind)
    is_compared = not is_alone or kind == "calibrated"
    minutes = estimate([run.cpu_minutes for run in members if run.cpu_minutes is not None])
    cells = [
        _title(group) + (", calibrated" if kind == "calibrated" else ""),
        as_ranges(sorted(_values(members, "acc", kind))),
        _mean(members, "acc", kind),
        _mean(members, "fm", kind),
        _paper_numbers(group) if kind == "running" else "-",
        *(interval(difference(groups, group, alone, m, to_alone)) if is_compared else "-" for m in MEASURES),
        interval(difference(groups, group, hard, "acc", (kind, kind))) if group != hard else "-",
        "-" if minutes is None else f"{minutes.mean:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _values(runs: Sequence[MeasuredRun], measure: Measure, kind: Statistics) -> dict[int, float]:
    values = {run.seed: run.value(measure, kind) for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}


def _mean(runs: Sequence[MeasuredRun], measure: Measure, kind: Statistics) -> str:
    found = estimate(list(_values(runs, measure, kind).values()))
    return "-" if found is None else found.mean_std


def _number(text: str) -> float | None:
    return float(text) if text else None


def _matrix(text: str | None) -> Matrix:
    """A row for each task.

    >>> _matrix("98.6; 97.2 95.8")
    ((98.6,), (97.2, 95.8))
    """
    return tuple(tuple(map(float, row.split())) for row in text.split(";")) if text else ()


def _title(group: Group) -> str:
    title = title_of(group.method, group.plugin)
    return f"{title}, {group.options}" if group.options else title


def _paper_numbers(group: Group) -> str:
    """The paper's ACC and FM for the cell that a group repeats: one with options of its own repeats none."""
    cell = Cell(group.setting, group.data, group.buffer_size, group.method, group.plugin)
    target = paper_targets().get(cell)
    if target is None or group.options:
        return "-"
    return f"{target.acc:.2f} / {'-' if target.fm is None else f'{target.fm:.2f}'}"
