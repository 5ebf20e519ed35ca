"""Recorded runs fill the table of all methods."""

from ddn_lightning.report.collection_table import as_markdown, collect
from ddn_lightning.reproduce.cell import Cell
from study.collection import results_of
from study.measured import Group, MeasuredRun

BED = ("offline", "digits", 100)
ER, HARD, DDN = Cell(*BED, "er"), Cell(*BED, "er", "hard"), Cell(*BED, "er", "ddn")
DER = Cell(*BED, "der")


def test_recorded_runs_fill_the_arms_that_they_are_of() -> None:
    def recorded(method: str, plugin: str, options: str, seed: int, acc: float, bed: str = "digits") -> MeasuredRun:
        group = Group(bed, "ResNet18 width 8", "offline", 100, method, plugin, options)
        return MeasuredRun(group, seed, acc, 20.0, (acc,), acc + 5, 10.0, 1.0, "ddn fit")

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
    found = results_of([ER, HARD, DDN, DER], runs, "digits", "ResNet18 width 8")
    assert {cell: [result.acc for result in results] for cell, results in found.items()} == {
        ER: [80.0, 84.0],
        HARD: [70.0],
        DDN: [60.0],
    }
    *_, text = as_markdown(collect(list(found), found)).splitlines()
    line = [cell.strip() for cell in text.strip("|").split("|")]
    assert line[4:6] == ["82.00 ± 2.83 / 20.00 ± 0.00 (2)", "87.00 ± 2.83 / 10.00 ± 0.00 (2)"]
