"""The paper's numbers, and the ones that a run is compared with."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from ddn_lightning.names import method_key, plugin_key
from ddn_lightning.report.paper_setting import DATA, SETTINGS, differences_to_paper
from ddn_lightning.report.seed_group import MODEL
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

PAPER_TABLES = ("table1", "table2", "table3", "table4", "per_task")


@dataclass(frozen=True)
class Target:
    """A cell and the paper's numbers for it, in percent, if any.

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


@cache
def paper_table(name: str) -> tuple[Target, ...]:
    """The cells of one of :data:`PAPER_TABLES`, in the paper's order.

    >>> paper_table("table4")[1]
    Target(cell=Cell(setting='online', data='cifar10', buffer_size=100, method='er', plugin='none', variant=''), \
acc=28.08, fm=61.3, per_task=())
    """
    file_name = "paper_per_task.csv" if name == "per_task" else "paper_results.csv"
    with (files("ddn_lightning.report") / file_name).open(encoding="utf-8") as file:
        return tuple(_target(row) for row in csv.DictReader(file) if row.get("table", name) == name)


@cache
def paper_targets() -> Mapping[Cell, Target]:
    """The paper's numbers by cell; if several tables have a cell, those of the first."""
    targets = {target.cell: target for name in reversed(PAPER_TABLES) for target in paper_table(name)}
    return MappingProxyType(targets)


def _target(row: dict[str, str]) -> Target:
    names = (row["setting"], row["data"], int(row["buffer_size"]), row["method"], row["plugin"])
    per_task = tuple(float(value) for name, value in row.items() if name.startswith("task"))
    return Target(Cell(*names, variant=row.get("variant", "")), float(row["acc"]), float(row["fm"]), per_task)


def paper_target(run: RecordedRun) -> Target | None:
    """The paper's numbers for a run in the paper's setting, if it has any. Learning rates may differ."""
    return None if run.results is None or why_not_the_papers(run) else paper_targets()[_cell(run.results, run.config)]


def why_not_the_papers(run: RecordedRun, cell: Cell | None = None) -> str | None:
    """Why a run stands beside no number of the paper, such as ``width 20 instead of 64``; ``None`` if it does.

    Args:
        run: The run.
        cell: The cell that the number is of; by default any.
    """
    if run.results is None:
        return "it has no results"
    if found := differences_to_paper(run.results, run.config):
        return ", ".join(found)
    found_cell = _cell(run.results, run.config)
    if found_cell not in paper_targets():
        return f"{run.results.title} with memory {run.results.buffer_size} is not in the paper"
    return None if cell in (None, found_cell) else "options of another cell"


def _cell(results: Results, config: Mapping[str, Any]) -> Cell:
    """The cell of a run in the paper's setting."""
    setting = SETTINGS[config[f"{DATA}epochs_per_task"]]
    plugin = plugin_key(results.plugin)
    epsilon = config.get(f"{MODEL}distiller.init_args.epsilon")
    variant = f"epsilon={epsilon}" if plugin == "label_smoothing" else ""
    return Cell(setting, results.dataset, results.buffer_size, method_key(results.method), plugin, variant)
