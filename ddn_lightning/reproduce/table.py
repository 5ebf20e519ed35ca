"""The table of a plan: mean ± standard deviation over the seeds of each cell, as Markdown, CSV or JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddn_lightning.report.names import title_of
from ddn_lightning.report.reference import Reference, reference_of
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.report.tables import NOTHING, csv_table, markdown_table, rounded
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Run, short_name
from ddn_lightning.runs.recorded_run import RecordedRun, read_run
from ddn_lightning.runs.results import Results, read_divergence, read_result

MEASURES = {
    "acc": "ACC ↑",
    "fm": "FM ↓",
    "calibrated_acc": "calibrated ACC ↑",
    "calibrated_fm": "calibrated FM ↓",
}
PUBLISHED = ("acc", "fm")


@dataclass(frozen=True)
class Row:
    """The results of one cell.

    Args:
        cell: The cell.
        status: Which runs are missing; empty if none.
        n: Number of runs with results.
        measures: Each of :data:`MEASURES`; ``None`` where nothing was measured.
        per_task: Final accuracy of each task.
        reference: The published result, if one was given for such runs.
    """

    cell: Cell
    status: str
    n: int
    measures: Mapping[str, Estimate | None]
    per_task: tuple[Estimate | None, ...] = ()
    reference: Reference | None = None

    @property
    def method(self) -> str:
        """Title of the method with its plug-in, memory and options."""
        title = title_of(short_name(self.cell.method), short_name(self.cell.plugin))
        extras = [short_name(self.cell.memory), *self.cell.variant.split()]
        return f"{title} ({', '.join(filter(None, extras))})" if any(extras) else title

    def difference(self, name: str) -> float | None:
        """Ours minus the published value."""
        ours, theirs = self.measures[name], None if self.reference is None else getattr(self.reference, name)
        return None if ours is None or theirs is None else ours.mean - float(theirs)


def rows_of(runs: Sequence[Run], references: Sequence[Reference] = ()) -> list[Row]:
    """A row for each cell.

    Args:
        runs: The planned runs, finished or not.
        references: Published results.
    """
    by_cell: dict[Cell, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, []).append(run)
    return [_row(cell, planned, references) for cell, planned in by_cell.items()]


def _row(cell: Cell, planned: Sequence[Run], references: Sequence[Reference]) -> Row:
    found = [(run, read_result(run.folder)) for run in planned]
    done = [result for _, result in found if result is not None]
    tasks = zip(*(result.per_task for result in done), strict=False)
    recorded: RecordedRun | None = next((read_run(run.folder) for run, result in found if result is not None), None)
    return Row(
        cell=cell,
        status=_status(planned, done),
        n=len(done),
        measures={name: estimate(getattr(result, name) for result in done) for name in MEASURES},
        per_task=tuple(estimate(accuracies) for accuracies in tasks),
        reference=None if recorded is None else reference_of(recorded, references),
    )


def _status(planned: Sequence[Run], done: Sequence[Results]) -> str:
    if len(done) == len(planned):
        return ""
    diverged = sum(read_divergence(run.folder) is not None for run in planned)
    return f"{len(done)} of {len(planned)} runs" + (f", {diverged} diverged" if diverged else "")


def as_markdown(rows: Sequence[Row]) -> str:
    """A table to read: mean ± standard deviation (n), and published values with the difference if there are any."""
    measures = [name for name in MEASURES if name in PUBLISHED or any(row.measures[name] for row in rows)]
    has_network, has_reference = any(row.cell.network for row in rows), any(row.reference for row in rows)
    header = ["setting", "data", *(["network"] if has_network else []), "buffer", "method"]
    words = len(header)
    for name in measures:
        header += [MEASURES[name], *(["published", "Δ"] if has_reference and name in PUBLISHED else [])]
    lines = []
    for row in rows:
        parts = [row.cell.setting, row.cell.data, *([row.cell.network] if has_network else [])]
        line = [*map(short_name, parts), str(row.cell.buffer_size), row.method]
        for name in measures:
            ours = row.measures[name]
            line.append(NOTHING if ours is None else str(ours))
            if has_reference and name in PUBLISHED:
                line += _published(row, name)
        if row.status:
            line[words] = row.status if row.n == 0 else f"{line[words]}, {row.status}"
        lines.append([*line, *([row.reference.source if row.reference else NOTHING] if has_reference else [])])
    return markdown_table([*header, *(["source"] if has_reference else [])], lines, numbers_from=words)


def _published(row: Row, name: str) -> list[str]:
    value, difference = getattr(row.reference, name, None), row.difference(name)
    return [NOTHING if value is None else f"{value:.2f}", NOTHING if difference is None else f"{difference:+.2f}"]


def as_csv(rows: Sequence[Row]) -> str:
    """One line per cell; empty where there is no number."""
    return csv_table(_records(rows))


def as_json(rows: Sequence[Row]) -> str:
    """One object per cell; ``null`` where there is no number."""
    return json.dumps(_records(rows), indent=2) + "\n"


def _records(rows: Sequence[Row]) -> list[dict[str, str | float | None]]:
    tasks = max((len(row.per_task) for row in rows), default=0)
    return [_record(row, tasks) for row in rows]


def _record(row: Row, tasks: int) -> dict[str, str | float | None]:
    cell = row.cell
    record: dict[str, str | float | None] = {
        **{name: getattr(cell, name) for name in ("setting", "data", "network", "buffer_size", "method", "memory")},
        "plugin": cell.plugin,
        "variant": cell.variant,
        "status": row.status,
        "n": row.n,
    }
    per_task = {f"task{number + 1}": _entry(row.per_task, number) for number in range(tasks)}
    for name, found in {**row.measures, **per_task}.items():
        record[name] = rounded(getattr(found, "mean", None))
        record[f"{name}_std"] = rounded(getattr(found, "std", None))
    for name in PUBLISHED:
        record[f"{name}_published"] = rounded(getattr(row.reference, name, None))
        record[f"{name}_difference"] = rounded(row.difference(name))
    return record | {"source": None if row.reference is None else row.reference.source}


def _entry(values: Sequence[Estimate | None], number: int) -> Estimate | None:
    return values[number] if number < len(values) else None
