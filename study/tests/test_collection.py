"""Recorded runs fill the table of all methods."""

from pathlib import Path

from ddn_lightning import methods
from ddn_lightning.report.names import METHODS
from ddn_lightning.reproduce.grid import Cell, read_grid
from study.collection import ARMS, collection_table
from study.measured import Group, MeasuredRun

CONFIGS = Path(__file__).parents[2] / "configs"
BED = ("offline", "digits", 100)
ER, HARD, DER = Cell(*BED, "er"), Cell(*BED, "er", "hard"), Cell(*BED, "der")
DDN = Cell(*BED, "er", "ddn")


def recorded(method: str, plugin: str, options: str, seed: int, acc: float, bed: str = "digits") -> MeasuredRun:
    group = Group(bed, "ResNet18 width 8", "offline", 100, method, plugin, options)
    return MeasuredRun(group, seed, acc, 20.0, (acc,), acc + 5, 10.0, 1.0, "ddn fit")


def test_recorded_runs_fill_the_arms_that_they_are_of() -> None:
    runs = [
        recorded("er", "none", "", 11, 80.0),
        recorded("er", "none", "", 12, 84.0),
        recorded("er", "none", "", 1, 99.0),  # has served for choosing
        recorded("er", "none", "lr=0.1", 11, 99.0),
        recorded("er", "none", "", 11, 99.0, bed="digits@4"),
        recorded("er", "none", "old_memory_weight=1", 11, 70.0),
        recorded("er", "ddn", "lookahead=step", 11, 60.0),
        recorded("er", "ddn", "", 11, 99.0),
    ]
    *_, text = collection_table([ER, HARD, DDN, DER], runs, "digits", "ResNet18 width 8").splitlines()
    assert [cell.strip() for cell in text.strip("|").split("|")] == [
        *("offline", "digits", "100", "ER"),
        *("82.00 ± 2.83 / 20.00 ± 0.00 (2)", "87.00 ± 2.83 / 10.00 ± 0.00 (2)"),
        *("70.00 / 20.00 (1)", "75.00 / 10.00 (1)", "60.00 / 20.00 (1)", "65.00 / 10.00 (1)"),
    ]


def test_the_plans_have_every_method_with_a_memory_and_every_arm_that_it_takes() -> None:
    takes = {facts.key: getattr(methods, name).takes_distiller() for name, facts in METHODS.items()}
    expected = {
        (method, plugin)
        for method in takes.keys() - {"finetune", "joint", "ncm", "slda"}
        for plugin in ARMS
        if plugin == "none" or takes[method]
    }
    for name in ("collection", "collection_images"):
        assert {(cell.method, cell.plugin) for cell in read_grid(name, CONFIGS).cells} == expected
