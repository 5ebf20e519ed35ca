"""The tables of the report page, as rows of cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddn_lightning.report.group_comparison import HEADER, GroupComparison, cells
from ddn_lightning.report.reference import Reference, reference_of
from ddn_lightning.report.run_labels import method_title, run_labels
from ddn_lightning.report.seed_group import by_seed, differences, one_per_seed, varied_settings
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.report.tables import NOTHING, duration
from ddn_lightning.runs.recorded_run import RecordedRun


@dataclass(frozen=True)
class Column:
    """The heading of a column, and whether it is sorted by number."""

    title: str
    is_number: bool = False


@dataclass(frozen=True)
class TableCell:
    """The text of a cell, its sort key, and the identifier of the element it links to."""

    text: str = ""
    key: str = ""
    link: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table; the page does not show one without rows."""

    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[TableCell]] = ()


@dataclass(frozen=True)
class Settings:
    """Settings of several runs: those that differ, with a column per run, and those that all share."""

    title: str
    different: PageTable
    same: PageTable


def results_table(
    runs: Sequence[RecordedRun], anchors: Mapping[str, str], references: Sequence[Reference] = ()
) -> PageTable:
    """One row per finished run.

    Args:
        runs: The runs.
        anchors: Identifier of the section about each run, by name.
        references: Published results.
    """
    published = published_of(runs, references)
    columns = [Column("Run"), *_measure_columns(published), Column("Task-IL ACC", True), Column("AAA", True)]
    columns += [
        Column("Method"),
        Column("Plug-in"),
        Column("Data"),
        Column("Memory", True),
        Column("Seed", True),
        Column("Time", True),
    ]
    has_splits = any(run.results is not None and run.results.measures for run in runs)
    columns += [Column("Measured on")] if has_splits else []
    rows = []
    for run in runs:
        assert run.results is not None
        results = run.results
        row = [TableCell(run.name, run.name, anchors.get(run.name, ""))]
        row += _with_published(run, [_number(results.acc), _number(results.fm)], published)
        row += [
            _number(results.task_il_acc),
            _number(results.aaa),
            _text(results.method),
            _text(results.plugin or ""),
            _text(results.dataset),
        ]
        row += [_number(results.buffer_size, ".0f"), _number(results.seed, ".0f"), _duration(results.seconds)]
        row += [_text(results.measures or "all (test)")] if has_splits else []
        rows.append(row)
    return PageTable(columns, rows)


def seeds_table(runs: Sequence[RecordedRun], references: Sequence[Reference] = ()) -> PageTable:
    """One row per group of runs that differ only in their seed, if any group has at least two; a seed counts once."""
    groups = [one_per_seed(group) for group in by_seed(runs)]
    if all(len(group) == 1 for group in groups):
        return PageTable()
    published = published_of(runs, references)
    columns = [Column("Method"), *_measure_columns(published), Column("Task-IL ACC", True), Column("Data")]
    columns += [Column("Memory", True), Column("What differs"), Column("Runs")]
    varied = varied_settings(group[0] for group in groups)
    rows = []
    for number, group in enumerate(groups):
        first = group[0].results
        assert first is not None
        names = ("acc", "fm", "task_il_acc")
        *measures, task_il = [_mean(estimate(getattr(run.results, name) for run in group)) for name in names]
        options = ", ".join(one.describe(number) for one in varied if one.values[number])
        name = _text(method_title(first))
        row = [name, *_with_published(group[0], measures, published), task_il, _text(first.dataset)]
        row += [_number(first.buffer_size, ".0f"), _text(options), _text(", ".join(run.name for run in group))]
        rows.append(row)
    return PageTable(columns, rows)


def paired_table(comparison: GroupComparison) -> PageTable:
    """The rows of ``ddn compare``, if any two groups share a seed."""
    if not comparison.has_pairs:
        return PageTable()
    rows = []
    for row in comparison.rows:
        numbers = [row.acc, row.fm, row.task_il_acc, row.acc_difference, row.fm_difference, row.cpu_minutes, row.cost]
        means = ["" if value is None else str(value.mean) for value in numbers]
        needed = row.seeds_needed and row.seeds_needed.observed
        keys = [row.title, str(row.acc.n), "", *means[:3], row.against or "", means[3], str(needed or ""), *means[4:]]
        texts = ["" if text == NOTHING else text for text in cells(row)]
        rows.append([TableCell(text, key) for text, key in zip(texts, keys, strict=True)])
    words = ("group", "seeds", "against")
    return PageTable([Column(title[0].upper() + title[1:], title not in words) for title in HEADER], rows)


def settings_tables(runs: Sequence[RecordedRun]) -> list[Settings]:
    """Configuration, versions and timing of the runs."""
    parts: dict[str, list[Mapping[str, Any]]] = {
        "Configuration": [run.config for run in runs],
        "Versions": [{} if run.results is None else run.results.versions for run in runs],
        "Timing": [_timing(run) for run in runs],
    }
    labels = run_labels(runs)
    columns = [Column("Setting"), *(Column(labels[run.name]) for run in runs)]
    tables = []
    for title, values in parts.items():
        found = differences(values)
        different = [_setting_row(one.key, one.values) for one in found if not one.is_same]
        same = [_setting_row(one.key, one.values[:1]) for one in found if one.is_same]
        tables.append(
            Settings(title, PageTable(columns, different), PageTable([Column("Setting"), Column("Value")], same))
        )
    return tables


def _setting_row(key: str, values: Sequence[str]) -> list[TableCell]:
    return [_text(key.replace(".init_args", "")), *map(_text, values)]


def _timing(run: RecordedRun) -> dict[str, str]:
    seconds = None if run.results is None else run.results.seconds
    steps = max((int(row["step"]) + 1 for row in run.rows), default=0)
    per_step = "" if not seconds or not steps else f"{1000 * seconds / steps:.1f} ms, evaluation included"
    return {"training time": _duration(seconds).text, "steps": str(steps or ""), "per step": per_step}


def published_of(runs: Sequence[RecordedRun], references: Sequence[Reference]) -> dict[str, Reference]:
    """The published results that runs are comparable with, by the name of the run."""
    return {run.name: found for run in runs if (found := reference_of(run, references)) is not None}


def _measure_columns(published: Mapping[str, Reference]) -> list[Column]:
    titles = ("ACC", "published", "Δ", "FM", "published", "Δ") if published else ("ACC", "FM")
    return [Column(title, True) for title in titles]


def _with_published(
    run: RecordedRun, measures: Sequence[TableCell], published: Mapping[str, Reference]
) -> list[TableCell]:
    """ACC and FM, each followed by the published value and the difference, if any run has one."""
    if not published:
        return list(measures)
    found = published.get(run.name)
    row = []
    for ours, theirs in zip(measures, (None, None) if found is None else (found.acc, found.fm), strict=True):
        difference = float(ours.key) - theirs if ours.key and theirs is not None else None
        row += [ours, _number(theirs), _number(difference, "+.2f")]
    return row


def _text(text: str) -> TableCell:
    return TableCell(text, text)


def _number(value: float | None, form: str = ".2f") -> TableCell:
    return TableCell() if value is None else TableCell(format(value, form), str(value))


def _mean(value: Estimate | None) -> TableCell:
    return TableCell() if value is None else TableCell(str(value), str(value.mean))


def _duration(seconds: float | None) -> TableCell:
    return TableCell() if seconds is None else TableCell(duration(seconds), str(seconds))
