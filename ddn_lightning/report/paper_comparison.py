"""Our results beside the paper's, as rows and as Markdown, CSV or JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ddn_lightning.names import title_of
from ddn_lightning.report.paper import Target
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.report.tables import NOTHING, csv_table, in_markdown, markdown_table, rounded
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.results import RunResult

MEASURE_TITLES = {"acc": "ACC ↑", "fm": "FM ↓"}


@dataclass(frozen=True)
class Comparison:
    """Our measurement and the paper's number, if any."""

    ours: Estimate | None
    paper: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper


@dataclass(frozen=True)
class Row:
    """One cell of a table.

    Args:
        cell: The cell.
        status: Which runs are missing; empty if none.
        n: Number of runs with results.
        measures: ``acc``, ``fm``, and ``task1``, ``task2``, ... where the paper states them.
        reason: Why the paper's numbers are left out, if they are.
    """

    cell: Cell
    status: str
    n: int
    measures: Mapping[str, Comparison]
    reason: str | None = None

    @property
    def method(self) -> str:
        """Title of the method with its plug-in."""
        title = title_of(self.cell.method, self.cell.plugin)
        return f"{title} ({self.cell.variant.replace(' ', ', ')})" if self.cell.variant else title


def compare_with_paper(
    targets: Sequence[Target],
    results: Mapping[Cell, Sequence[RunResult | None]],
    diverged: Mapping[Cell, int] = MappingProxyType({}),
    reasons: Mapping[Cell, str] = MappingProxyType({}),
) -> list[Row]:
    """Our mean over runs beside the paper's number, for each cell.

    Args:
        targets: The cells and the paper's numbers.
        results: Results of the planned runs of each cell, ``None`` for runs without one. A cell without an entry
            belongs to a method that is not available.
        diverged: Number of diverged runs of each cell.
        reasons: Why the runs of a cell are not in the paper's setting: its numbers are left out.
    """
    return [
        _row(target, results.get(target.cell), diverged.get(target.cell, 0), reasons.get(target.cell))
        for target in targets
    ]


def _row(target: Target, planned: Sequence[RunResult | None] | None, diverged: int, reason: str | None) -> Row:
    def beside(ours: Estimate | None, paper: float | None) -> Comparison:
        return Comparison(ours, paper if reason is None else None)

    done = [result for result in planned or () if result is not None]
    measures = {
        "acc": beside(estimate(result.acc for result in done), target.acc),
        "fm": beside(estimate(result.fm for result in done), target.fm),
    }
    for task, accuracy in enumerate(target.per_task):
        ours = estimate(result.per_task[task] for result in done if task < len(result.per_task))
        measures[f"task{task + 1}"] = beside(ours, accuracy)
    return Row(target.cell, status_of(planned, diverged), len(done), measures, reason)


def status_of(planned: Sequence[RunResult | None] | None, diverged: int) -> str:
    """Which runs of a cell are missing; empty if none.

    >>> status_of([RunResult(40.0, 50.0), None], diverged=1), status_of(None, 0)
    ('1 of 2 runs, 1 diverged', 'not available')
    """
    if planned is None:
        return "not available"
    done = sum(result is not None for result in planned)
    if planned and done == len(planned):
        return ""
    return f"{done} of {len(planned)} runs" + (f", {diverged} diverged" if diverged else "")


def as_markdown(rows: Sequence[Row]) -> str:
    """A table to read: mean ± standard deviation (n), the paper's number and the difference, or why there is none."""
    header = ["setting", "data", "buffer", "method"]
    for name in rows[0].measures if rows else MEASURE_TITLES:
        is_task = name not in MEASURE_TITLES
        header += (
            [f"{name.replace('task', 'task ')} (paper)"] if is_task else [MEASURE_TITLES[name], "paper", "difference"]
        )
    lines = []
    for row in rows:
        cells = [row.cell.setting, row.cell.data, str(row.cell.buffer_size), row.method]
        for name, comparison in row.measures.items():
            cells += _cells(comparison) if name in MEASURE_TITLES else [_short_cell(comparison)]
        if row.status:
            cells[4] = row.status if row.n == 0 else f"{cells[4]}, {row.status}"
        lines.append(cells)
    return markdown_table(header, lines, numbers_from=4) + _without_the_papers(rows)


def _without_the_papers(rows: Sequence[Row]) -> str:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.reason is not None:
            reasons.setdefault(row.reason, []).append(f"{row.method}, {row.cell.data}, {row.cell.buffer_size}")
    lines = [in_markdown(f"{'; '.join(names)}: {reason}") for reason, names in reasons.items()]
    return "\nWithout the paper's numbers:\n\n" + "".join(f"- {line}\n" for line in lines) if lines else ""


def as_csv(rows: Sequence[Row]) -> str:
    """One line per cell of the table; empty where there is no number."""
    return csv_table([_record(row) for row in rows])


def as_json(rows: Sequence[Row]) -> str:
    """One object per cell of the table; ``null`` where there is no number."""
    return json.dumps([_record(row) for row in rows], indent=2) + "\n"


def _cells(comparison: Comparison) -> list[str]:
    ours = NOTHING if comparison.ours is None else str(comparison.ours)
    paper = NOTHING if comparison.paper is None else f"{comparison.paper:.2f}"
    difference = NOTHING if comparison.difference is None else f"{comparison.difference:+.2f}"
    return [ours, paper, difference]


def _short_cell(comparison: Comparison) -> str:
    ours = NOTHING if comparison.ours is None else comparison.ours.mean_std
    return f"{ours} ({NOTHING if comparison.paper is None else f'{comparison.paper:.2f}'})"


def _record(row: Row) -> dict[str, str | float | None]:
    record: dict[str, str | float | None] = {**vars(row.cell), "status": row.status, "n": row.n}
    for name, comparison in row.measures.items():
        record[name] = rounded(getattr(comparison.ours, "mean", None))
        record[f"{name}_std"] = rounded(getattr(comparison.ours, "std", None))
        record[f"{name}_paper"] = rounded(comparison.paper)
        record[f"{name}_difference"] = rounded(comparison.difference)
    record["why_not_the_papers"] = row.reason
    return record
