"""The tables of the report page, as rows of cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddn_lightning.report.compared import Compared
from ddn_lightning.report.compared_tables import HEADER, NOTHING, cells
from ddn_lightning.report.groups import Difference, by_seed, differences, what_differs
from ddn_lightning.report.paper import paper_target
from ddn_lightning.report.statistic import Statistic, statistic
from ddn_lightning.runs.recorded_run import RecordedRun


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        title: Its heading.
        is_number: Whether it is sorted by number.
    """

    title: str
    is_number: bool = False


@dataclass(frozen=True)
class TableCell:
    """A cell.

    Args:
        text: What it shows; empty where nothing is known.
        key: What it is sorted by; empty where nothing is known.
        link: Identifier that it leads to, if any.
    """

    text: str
    key: str = ""
    link: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table.

    Args:
        columns: Its columns.
        rows: Its rows.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[TableCell]]


def has_paper(runs: Sequence[RecordedRun]) -> bool:
    """Whether the paper has a number for any of these runs."""
    return any(paper_target(run) is not None for run in runs)


def results_table(runs: Sequence[RecordedRun], anchors: Mapping[str, str]) -> PageTable:
    """One row per finished run.

    Args:
        runs: The runs.
        anchors: Identifiers of what the page tells about each, by name.
    """
    with_paper = has_paper(runs)
    columns = [Column("Run"), *_measures(with_paper), Column("AAA", True), Column("Method"), Column("Plug-in")]
    columns += [Column("Data"), Column("Memory", True), Column("Seed", True), Column("Time", True)]
    rows = []
    for run in runs:
        assert run.results is not None
        results, target = run.results, paper_target(run)
        paper = (None, None) if target is None else (target.acc, target.fm)
        cells = [TableCell(run.name, run.name, anchors.get(run.name, ""))]
        for ours, theirs in zip((results.acc, results.fm), paper, strict=True):
            cells += [_number(ours), *(_beside(ours, theirs) if with_paper else [])]
        cells += [_number(results.aaa), _text(results.method), _text(results.plugin or ""), _text(results.dataset)]
        cells += [_number(results.buffer_size, 0), _number(results.seed, 0), _duration(results.seconds)]
        rows.append(cells)
    return PageTable(columns, rows)


def seeds_table(runs: Sequence[RecordedRun]) -> PageTable:
    """One row for each group of runs that differ in their seed only, if there is a group of at least two."""
    groups = by_seed(runs)
    if all(len(group) == 1 for group in groups):
        return PageTable([], [])
    with_paper = has_paper(runs)
    columns = [Column("Method"), *_measures(with_paper), Column("Data"), Column("Memory", True)]
    columns += [Column("What differs"), Column("Runs")]
    rows = []
    for group, options in zip(groups, what_differs([group[0] for group in groups]), strict=True):
        first = group[0].results
        assert first is not None
        target = paper_target(group[0])
        paper = (None, None) if target is None else (target.acc, target.fm)
        cells = [_text(first.title)]
        for name, theirs in zip(("acc", "fm"), paper, strict=True):
            ours = statistic(getattr(run.results, name) for run in group)
            mean = None if ours is None else ours.mean
            cells += [_statistic(ours), *(_beside(mean, theirs) if with_paper else [])]
        cells += [_text(first.dataset), _number(first.buffer_size, 0), _text(options)]
        rows.append([*cells, _text(", ".join(run.name for run in group))])
    return PageTable(columns, rows)


def compared_table(comparison: Compared) -> PageTable:
    """The rows of ``ddn compare``, if any two groups share a seed."""
    if not comparison.has_pairs:
        return PageTable([], [])
    rows = []
    for row in comparison.rows:
        numbers = [row.acc, row.fm, row.acc_difference, row.fm_difference, row.cpu_minutes, row.cost]
        means = ["" if value is None else str(value.mean) for value in numbers]
        keys = [row.title, str(row.acc.n), "", *means[:2], row.against or "", *means[2:]]
        texts = ["" if text == NOTHING else text for text in cells(row)]
        rows.append([TableCell(text, key) for text, key in zip(texts, keys, strict=True)])
    words = ("group", "seeds", "against")
    return PageTable([Column(title[0].upper() + title[1:], title not in words) for title in HEADER], rows)


@dataclass(frozen=True)
class Settings:
    """Settings of several runs: those that differ, and those that do not.

    Args:
        title: What they are.
        caption: What stands above those that differ.
        is_compared: Whether there are several runs.
        different: A column per run.
        same: One value for all.
    """

    title: str
    caption: str
    is_compared: bool
    different: PageTable
    same: PageTable


def settings_tables(runs: Sequence[RecordedRun]) -> list[Settings]:
    """The configurations as a difference, the versions, and the timing."""
    parts: dict[str, list[Mapping[str, Any]]] = {
        "Configuration": [run.config for run in runs],
        "Versions": [{} if run.results is None else run.results.versions for run in runs],
        "Timing": [_timing(run) for run in runs],
    }
    return [_settings(title, [run.name for run in runs], values) for title, values in parts.items()]


def _settings(title: str, names: Sequence[str], values: Sequence[Mapping[str, Any]]) -> Settings:
    found = differences(values)
    is_compared = len(names) > 1
    different = [one for one in found if not one.is_same]
    same = [one for one in found if one.is_same]
    columns = [Column("Setting"), *(Column(name) for name in names)]
    return Settings(
        title,
        f"{title}: what differs between the runs",
        is_compared,
        PageTable(columns, [_row(one) for one in different]),
        PageTable([Column("Setting"), Column("Value")], [_row(Difference(one.key, one.values[:1])) for one in same]),
    )


def _row(difference: Difference) -> list[TableCell]:
    key = difference.key.replace(".init_args", "")
    return [_text(key), *(_text(value) for value in difference.values)]


def _timing(run: RecordedRun) -> dict[str, str]:
    seconds = None if run.results is None else run.results.seconds
    steps = max((int(row["step"]) + 1 for row in run.rows), default=0)
    per_step = "" if not seconds or not steps else f"{1000 * seconds / steps:.1f} ms, evaluation included"
    return {"training time": _duration(seconds).text, "steps": str(steps or ""), "per step": per_step}


def _measures(with_paper: bool) -> list[Column]:
    beside = [Column("paper", True), Column("Δ", True)] if with_paper else []
    return [Column("ACC", True), *beside, Column("FM", True), *beside]


def _beside(ours: float | None, theirs: float | None) -> list[TableCell]:
    if theirs is None:
        return [TableCell(""), TableCell("")]
    difference = None if ours is None else ours - theirs
    return [_number(theirs), TableCell("") if difference is None else TableCell(f"{difference:+.2f}", str(difference))]


def _text(text: str) -> TableCell:
    return TableCell(text, text)


def _number(value: float | None, digits: int = 2) -> TableCell:
    return TableCell("") if value is None else TableCell(f"{value:.{digits}f}", str(value))


def _statistic(value: Statistic | None) -> TableCell:
    return TableCell("") if value is None else TableCell(str(value), str(value.mean))


def _duration(seconds: float | None) -> TableCell:
    """A time to read.

    >>> _duration(75.0).text, _duration(4000.0).text, _duration(3.21).text
    ('1 min 15 s', '1 h 6 min', '3.2 s')
    """
    if seconds is None:
        return TableCell("")
    whole = round(seconds)
    if seconds < 60:
        text = f"{seconds:.1f} s"
    elif whole < 3600:
        text = f"{whole // 60} min {whole % 60} s"
    else:
        text = f"{whole // 3600} h {whole % 3600 // 60} min"
    return TableCell(text, str(seconds))
