"""The accuracy matrix as tables that fit the terminal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from torch import Tensor

Summary = Callable[[Tensor], Mapping[str, Tensor]]
SO_FAR = {"ACC": "average_accuracy", "FM": "forgetting"}


@dataclass(frozen=True)
class _Row:
    stage: int  # counted from 1
    accuracies: Sequence[float]
    so_far: Sequence[float]  # ACC and FM


def accuracy_tables(matrix: Tensor, summary: Summary, title: str, width: int) -> list[Table]:
    """A row per evaluated task, a column per task, and ACC and FM so far on the right.

    If ``width``, in characters, is too small, the borders go first, then one digit; then the columns continue in
    another table.
    """
    rows = _rows(matrix, summary)
    if not rows:
        return []
    tasks = range(max(task + 1 for row in rows for task, value in enumerate(row.accuracies) if value == value))
    tables = [_table(Table(title=title), "task ", rows, tasks, 2)]
    number = 1
    while not _fit(tables, width) and number <= len(tasks):
        per_table = -(-len(tasks) // number)
        parts = [tasks[start : start + per_table] for start in range(0, len(tasks), per_table)]
        for digits in (2, 1):
            tables = [_narrow(rows, part, digits, title, is_last=part is parts[-1]) for part in parts]
            if _fit(tables, width):
                break
        number += 1
    return tables


def _rows(matrix: Tensor, summary: Summary) -> list[_Row]:
    rows = []
    for stage, accuracies in enumerate(matrix.tolist(), start=1):
        if any(value == value for value in accuracies):
            found = summary(matrix[:stage, :stage])
            rows.append(_Row(stage, accuracies, [float(found[key]) for key in SO_FAR.values() if key in found]))
    return rows


def _narrow(rows: Sequence[_Row], tasks: range, digits: int, title: str, is_last: bool) -> Table:
    table = Table(title=title if tasks[0] == 0 else None, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    return _table(table, "", rows, tasks, digits, is_last)


def _table(table: Table, prefix: str, rows: Sequence[_Row], tasks: range, digits: int, is_last: bool = True) -> Table:
    """Fill a table; the last one also has the columns ACC and FM."""
    table.add_column("learned", justify="left" if prefix else "right", no_wrap=not prefix)
    for name in (*(f"{prefix}{task + 1}" for task in tasks), *(SO_FAR if is_last else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        values = [row.accuracies[task] for task in tasks]
        cells = ["" if value != value else f"{value:.{digits}f}" for value in values]
        so_far = [f"[bold]{value:.{digits}f}[/bold]" for value in row.so_far] if is_last else []
        if any(cells) or is_last:
            table.add_row(f"{prefix}{row.stage}", *cells, *so_far)
    return table


def _fit(tables: Sequence[Table], width: int) -> bool:
    console = Console(width=100_000)
    return all(Measurement.get(console, console.options, table).maximum <= width for table in tables)
