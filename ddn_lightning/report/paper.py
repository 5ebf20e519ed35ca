"""The tables of the DDN paper as data: which cells they have, and what the paper states for each."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

PAPER_TABLES = ("table1", "table2", "table3", "table4", "per_task")


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a method in a setting, named by the files in ``configs/``.

    Args:
        setting: ``online`` or ``offline``.
        data: Dataset.
        buffer_size: Samples that the memory holds; 0 for a method without memory.
        method: Method.
        plugin: Plug-in, or ``none``.
        variant: Arguments of the plug-in by which cells of one table differ, such as ``alpha=0.5 beta=0.9``.
    """

    setting: str
    data: str
    buffer_size: int
    method: str
    plugin: str = "none"
    variant: str = ""


@dataclass(frozen=True)
class Target:
    """A cell and the paper's numbers for it, in percent, where it has any.

    Args:
        cell: The cell.
        acc: Average accuracy.
        fm: Forgetting.
        per_task: Final accuracy of each task.
    """

    cell: Cell
    acc: float | None = None
    fm: float | None = None
    per_task: tuple[float, ...] = ()


def paper_table(name: str) -> list[Target]:
    """The cells of one of :data:`PAPER_TABLES`, in the paper's order.

    >>> paper_table("table4")[1]
    Target(cell=Cell(setting='online', data='cifar10', buffer_size=100, method='er', plugin='none', variant=''), \
acc=28.08, fm=61.3, per_task=())
    """
    return list(_targets(name))


@cache
def paper_targets() -> Mapping[Cell, Target]:
    """The paper's numbers for each cell that it has any for; the first table's, where several have the cell."""
    found: dict[Cell, Target] = {}
    for name in PAPER_TABLES:
        for target in _targets(name):
            found.setdefault(target.cell, target)
    return MappingProxyType(found)


@cache
def _targets(name: str) -> tuple[Target, ...]:
    if name == "per_task":
        return tuple(_target(row) for row in _rows("paper_per_task.csv"))
    return tuple(_target(row) for row in _rows("paper_results.csv") if row["table"] == name)


def _rows(file_name: str) -> Iterator[dict[str, str]]:
    with (files("ddn_lightning.report") / file_name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _target(row: dict[str, str]) -> Target:
    names = (row["setting"], row["data"], int(row["buffer_size"]), row["method"], row["plugin"])
    per_task = tuple(float(value) for name, value in row.items() if name.startswith("task"))
    return Target(Cell(*names, variant=row.get("variant", "")), float(row["acc"]), float(row["fm"]), per_task)
