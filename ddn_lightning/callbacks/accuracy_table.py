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

    If the terminal is too narrow, the borders go first, then one digit; then the columns continue in another table.

    Args:
        matrix: The accuracy matrix, ``nan`` where nothing was measured.
        summary: Computes ACC and FM of a part of the matrix.
        title: Title of the first table.
        width: Width of the terminal in characters.
    """
    rows = _rows(matrix, summary)
    if not rows:
        return []
    tasks = range(max(task + 1 for row in rows for task, value in enumerate(row.accuracies) if value == value))
    tables = [_wide(rows, tasks, title)]
    number = 1
    while not _fit(tables, width) and number <= len(tasks):
        per_table = -(-len(tasks) // number)
        parts = [tasks[start : start + per_table] for start in range(0, len(tasks), per_table)]
        for digits in (2, 1):
            tables = [_narrow(rows, part, digits, title, part[-1] == tasks[-1]) for part in parts]
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


def _wide(rows: Sequence[_Row], tasks: range, title: str) -> Table:
    table = Table(title=title)
    table.add_column("learned")
    for name in (*(f"task {task + 1}" for task in tasks), *SO_FAR):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(f"task {row.stage}", *_cells(row, tasks, 2), *_bold(row.so_far, 2))
    return table


def _narrow(rows: Sequence[_Row], tasks: range, digits: int, title: str, is_last: bool) -> Table:
    table = Table(title=title if tasks[0] == 0 else None, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for name in ("learned", *(str(task + 1) for task in tasks), *(SO_FAR if is_last else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = _cells(row, tasks, digits)
        if any(cells) or is_last:
            table.add_row(str(row.stage), *cells, *(_bold(row.so_far, digits) if is_last else ()))
    return table


def _cells(row: _Row, tasks: range, digits: int) -> list[str]:
    values = [row.accuracies[task] for task in tasks]
    return ["" if value != value else f"{value:.{digits}f}" for value in values]


def _bold(values: Sequence[float], digits: int) -> list[str]:
    return [f"[bold]{value:.{digits}f}[/bold]" for value in values]


def _fit(tables: Sequence[Table], width: int) -> bool:
    console = Console(width=100_000)
    return all(Measurement.get(console, console.options, table).maximum <= width for table in tables)
