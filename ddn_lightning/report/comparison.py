"""Our results beside the paper's: rows of numbers, and these as Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ddn_lightning.names import title_of
from ddn_lightning.report.paper import Cell, Target
from ddn_lightning.report.statistic import Statistic, statistic
from ddn_lightning.runs.results import RunResult

ARROWS = {"acc": "ACC ↑", "fm": "FM ↓"}
NOTHING = "-"


@dataclass(frozen=True)
class Comparison:
    """One number, ours and the paper's.

    Args:
        ours: What was measured, if anything.
        paper: What the paper states, if anything.
    """

    ours: Statistic | None
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
        status: Empty if all its runs are there, otherwise what is missing.
        n: How many runs the numbers come from.
        measures: ``acc`` and ``fm``, and ``task1`` and so on where the paper has them.
    """

    cell: Cell
    status: str
    n: int
    measures: Mapping[str, Comparison]

    @property
    def method(self) -> str:
        """How to call the method with its plug-in."""
        title = title_of(self.cell.method, self.cell.plugin)
        return f"{title} ({self.cell.variant.replace(' ', ', ')})" if self.cell.variant else title


def compare(
    targets: Sequence[Target],
    results: Mapping[Cell, Sequence[RunResult | None]],
    diverged: Mapping[Cell, int] = MappingProxyType({}),
) -> list[Row]:
    """Our mean over runs beside the paper's number, for each cell.

    Args:
        targets: The cells and the paper's numbers.
        results: The planned runs of each cell, ``None`` for those without a result. A cell without an entry belongs to
            a method that is not available.
        diverged: How many of those without a result have diverged.
    """
    return [_row(target, results.get(target.cell), diverged.get(target.cell, 0)) for target in targets]


def _row(target: Target, planned: Sequence[RunResult | None] | None, diverged: int) -> Row:
    done = [result for result in planned or () if result is not None]
    measures = {
        "acc": Comparison(statistic(result.acc for result in done), target.acc),
        "fm": Comparison(statistic(result.fm for result in done), target.fm),
    }
    for task, accuracy in enumerate(target.per_task):
        ours = statistic(result.per_task[task] for result in done if task < len(result.per_task))
        measures[f"task{task + 1}"] = Comparison(ours, accuracy)
    status = "not available" if planned is None else f"{len(done)} of {len(planned)} runs"
    status += f", {diverged} diverged" if diverged else ""
    return Row(target.cell, "" if planned and len(done) == len(planned) else status, len(done), measures)


def as_markdown(rows: Sequence[Row]) -> str:
    """A table to read; mean ± standard deviation (n), then the paper's number and the difference."""
    measures = list(rows[0].measures) if rows else ["acc", "fm"]
    header = ["setting", "data", "buffer", "method"]
    for name in measures:
        title = ARROWS.get(name, name.replace("task", "task "))
        header += [title, "paper", "difference"] if name in ARROWS else [f"{title} (paper)"]
    lines = [header, ["---"] * 4 + ["---:"] * (len(header) - 4)]
    for row in rows:
        cells = [row.cell.setting, row.cell.data, str(row.cell.buffer_size), row.method]
        for name, comparison in row.measures.items():
            cells += _wide(comparison) if name in ARROWS else [_narrow(comparison)]
        if row.status:
            cells[4] = row.status if row.n == 0 else f"{cells[4]}, {row.status}"
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(rows: Sequence[Row]) -> str:
    """One line per cell, to compute with; nothing stands where there is no number."""
    return _csv([_record(row) for row in rows])


def as_json(rows: Sequence[Row]) -> str:
    """One object per cell; ``null`` where there is no number."""
    return json.dumps([_record(row) for row in rows], indent=2) + "\n"


def _wide(comparison: Comparison) -> list[str]:
    ours = NOTHING if comparison.ours is None else str(comparison.ours)
    paper = NOTHING if comparison.paper is None else f"{comparison.paper:.2f}"
    difference = NOTHING if comparison.difference is None else f"{comparison.difference:+.2f}"
    return [ours, paper, difference]


def _narrow(comparison: Comparison) -> str:
    ours, paper, _ = _wide(comparison)
    return f"{ours.partition(' (')[0]} ({paper})"


def _record(row: Row) -> dict[str, str | int | float | None]:
    record: dict[str, str | int | float | None] = {**vars(row.cell), "status": row.status, "n": row.n}
    for name, comparison in row.measures.items():
        ours = comparison.ours
        values = {
            name: None if ours is None else ours.mean,
            f"{name}_std": None if ours is None else ours.std,
            f"{name}_paper": comparison.paper,
            f"{name}_difference": comparison.difference,
        }
        record |= {key: None if value is None else round(value, 4) for key, value in values.items()}
    return record


def _csv(records: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
