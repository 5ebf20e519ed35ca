"""The numbers of the DDN paper: ``python -m study.paper`` writes them as a reference for ``ddn report``."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ddn_lightning.report.reference import COLUMNS
from ddn_lightning.report.tables import csv_table

PAPER_TABLES = ("table1", "table2", "table3", "table4", "per_task")
REFERENCE = Path(__file__).with_name("paper_reference.csv")
EPOCHS = {"online": 1, "offline": 50}
SETTING = {  # of runs that stand beside the paper's numbers; learning rates and the look-ahead may differ
    "data.batch_size": "32",
    "data.class_order_seed": "null",
    "data.stream": "null|[]",
    "data.validation_share": "null",
    "data.validation_per_class": "null",
    "trainer.limit_train_batches": "null",
    "model.backbone.class_path": "ResNet18",
    "model.backbone.width": "64",
    "model.replay_batch_size": "32",
    "model.momentum": "0",
    "model.weight_decay": "0",
    "model.old_memory_weight": "0",
    "model.replay_steps": "1",
    "model.running_statistics": "all",
    "forgetting.statistics": "running|both",
}


@dataclass(frozen=True)
class Cell:
    """One entry of a table of the paper.

    Args:
        setting: ``online`` or ``offline``.
        data: Dataset.
        buffer_size: Samples that the memory holds.
        method: Method.
        plugin: Plug-in, or ``none``.
        variant: Arguments of the plug-in that distinguish cells of one table, such as ``epsilon=0.1``.
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
    with Path(__file__).with_name(file_name).open(encoding="utf-8") as file:
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


def reference() -> str:
    """The paper's numbers as CSV for ``--reference``, each beside runs in the paper's setting only."""
    return csv_table([_record(target) for target in paper_targets().values()])


def _record(target: Target) -> dict[str, object]:
    cell = target.cell
    values = (cell.method, cell.plugin, cell.data, cell.buffer_size, target.acc, target.fm, "DDN paper")
    record: dict[str, object] = dict(zip(COLUMNS, values, strict=True))
    record["data.epochs_per_task"] = EPOCHS[cell.setting]
    epsilon = cell.variant.removeprefix("epsilon=")
    is_ddn = cell.plugin == "ddn"
    options = {"epsilon": epsilon, "alpha": "1.0" if is_ddn else "", "beta": "0.9" if is_ddn else ""}
    return {**record, **{f"model.distiller.{name}": value for name, value in options.items()}, **SETTING}


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8", newline="")
