"""The paper's numbers as shipped, checked against their sums and the paper's text."""

import pytest

from study.paper import PAPER_TABLES, REFERENCE, Cell, Target, paper_table, reference


def find(table: str, *names: object) -> Target:
    (found,) = [target for target in paper_table(table) if target.cell == Cell(*names)]  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("table", "cells"), [("table1", 78), ("table2", 48), ("table3", 12), ("table4", 16), ("per_task", 16)]
)
def test_each_table_is_complete_and_has_no_cell_twice(table: str, cells: int) -> None:
    targets = paper_table(table)
    assert len(targets) == len({target.cell for target in targets}) == cells
    assert all(target.acc is not None and 0 < target.acc < 100 for target in targets)
    assert all(target.fm is not None and 0 < target.fm < 100 for target in targets)


def test_every_row_of_the_results_is_in_a_listed_table() -> None:
    rows = REFERENCE.with_name("paper_results.csv").read_text().splitlines()[1:]
    assert len(rows) == sum(len(paper_table(name)) for name in PAPER_TABLES if name != "per_task")


@pytest.mark.parametrize(
    "target", paper_table("per_task"), ids=lambda target: f"{target.cell.method}-{target.cell.plugin}"
)
def test_the_mean_over_tasks_equals_the_stated_accuracy(target: Target) -> None:
    assert len(target.per_task) == 5
    assert sum(target.per_task) / 5 == pytest.approx(target.acc, abs=0.011)  # each is rounded


@pytest.mark.parametrize(
    ("table", "names", "gain", "less_forgetting"),
    [  # stated in the text for ER
        ("table1", ("online", "cifar10", 200), 5.88, 14.71),
        ("table2", ("offline", "cifar100", 2000), 6.95, 10.17),
        ("table4", ("online", "cifar10", 50), 4.07, 12.03),
    ],
)
def test_gains_match_the_papers_text(
    table: str, names: tuple[str, str, int], gain: float, less_forgetting: float
) -> None:
    alone, plugged = find(table, *names, "er"), find(table, *names, "er", "ddn")
    assert alone.acc is not None
    assert plugged.acc is not None
    assert alone.fm is not None
    assert plugged.fm is not None
    assert plugged.acc - alone.acc == pytest.approx(gain)
    assert alone.fm - plugged.fm == pytest.approx(less_forgetting)


def test_tables_agree_where_they_repeat_each_other() -> None:
    for target in paper_table("table3"):
        if target.cell.plugin in ("none", "ddn"):
            assert target in paper_table("table1")


def test_both_values_of_label_smoothing_are_separate_cells() -> None:
    smoothed = [target for target in paper_table("table3") if target.cell.plugin == "label_smoothing"]
    assert [target.cell.variant for target in smoothed] == ["epsilon=0.1"] * 2 + ["epsilon=0.5"] * 2


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text() == reference()  # else: python -m study.paper
