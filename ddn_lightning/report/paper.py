"""The paper's numbers, and the ones that a run is compared with."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from ddn_lightning.names import method_key, plugin_key
from ddn_lightning.runs.recorded_run import RecordedRun

PAPER_TABLES = ("table1", "table2", "table3", "table4", "per_task")
SETTINGS = {1: "online", 50: "offline"}  # by epochs per task
NUM_TASKS = {"cifar10": 5, "cifar100": 10, "tiny_imagenet": 10}
PAPER_WEIGHTS = {"alpha": 1.0, "beta": 0.9}  # of DDN, in all tables


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a method in a setting, named by the files in ``configs/``.

    Args:
        setting: ``online`` or ``offline``.
        data: Dataset.
        buffer_size: Samples that the memory holds; 0 for a method without memory.
        method: Method.
        plugin: Plug-in, or ``none``.
        variant: Arguments of the plug-in that distinguish cells of one table, such as ``alpha=0.5 beta=0.9``.
    """

    setting: str
    data: str
    buffer_size: int
    method: str
    plugin: str = "none"
    variant: str = ""


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
    """The paper's numbers for the same setting, data, memory, method and plug-in, if it has any.

    The network and the learning rates may differ.
    """
    cell = _cell(run)
    return None if cell is None else paper_targets().get(cell)


def _cell(run: RecordedRun) -> Cell | None:
    results = run.results
    epochs = run.config.get("data.init_args.epochs_per_task")
    setting = SETTINGS.get(epochs) if isinstance(epochs, int) else None
    if results is None or setting is None or NUM_TASKS.get(results.dataset) != len(results.matrix):
        return None
    model = {key.removeprefix("model.init_args."): value for key, value in run.config.items()}
    if model.get("old_memory_weight", 0) or model.get("replay_weight", 1) != 1:  # a control, not in the paper
        return None
    method, plugin = method_key(results.method), plugin_key(results.plugin)
    options = {key.removeprefix("distiller.init_args."): value for key, value in model.items()}
    if plugin == "ddn" and any(options.get(name, value) != value for name, value in PAPER_WEIGHTS.items()):
        return None
    variant = f"epsilon={options.get('epsilon')}" if plugin == "label_smoothing" else ""
    return Cell(setting, results.dataset, results.buffer_size, method, plugin, variant)
