"""Our numbers beside the paper's, against values computed by hand."""

import csv
import json
import math

import pytest

from ddn_lightning.report.paper import Target
from ddn_lightning.report.paper_comparison import as_csv, as_json, as_markdown, compare_with_paper
from ddn_lightning.report.statistic import estimate
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.results import RunResult

ER = Cell("online", "cifar10", 200, "er")
DDN = Cell("online", "cifar10", 200, "er", "ddn", "alpha=1 beta=0.9")
LUCIR = Cell("online", "cifar10", 200, "lucir")
UNKNOWN = Cell("offline", "digits", 100, "my_method")
TARGETS = [Target(ER, 36.05, 49.99), Target(DDN, 41.93, 35.28), Target(LUCIR, 23.59, 35.59), Target(UNKNOWN)]
RESULTS = {
    ER: [RunResult(30.0, 50.0), RunResult(34.0, 52.0), RunResult(38.0, 57.0)],
    DDN: [RunResult(40.0, 36.0), None],
    UNKNOWN: [None, None],
}
ROWS = compare_with_paper(TARGETS, RESULTS)
HEADER = ["ACC ↑", "paper", "difference", "FM ↓", "paper", "difference"]


def test_mean_deviation_and_difference_match_values_by_hand() -> None:
    acc, fm = ROWS[0].measures["acc"], ROWS[0].measures["fm"]
    assert acc.ours is not None
    assert (acc.ours.mean, acc.ours.std, acc.ours.n) == (34, 4, 3)  # sqrt((16 + 0 + 16) / 2)
    assert acc.difference == pytest.approx(-2.05)
    assert fm.ours is not None
    assert fm.ours.mean == 53
    assert fm.ours.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert fm.difference == pytest.approx(3.01)


def test_missing_runs_and_methods_are_reported() -> None:
    assert [row.status for row in ROWS] == ["", "1 of 2 runs", "not available", "0 of 2 runs"]
    assert [row.n for row in ROWS] == [3, 1, 0, 0]
    single = ROWS[1].measures["acc"]
    assert single.ours is not None
    assert (single.ours.mean, single.ours.std) == (40, None)  # one run does not vary
    assert ROWS[2].measures["acc"].ours is None
    assert ROWS[2].measures["acc"].difference is None
    assert ROWS[3].measures["acc"].paper is None


def test_the_markdown_table_has_our_number_the_papers_and_the_difference() -> None:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in as_markdown(ROWS).splitlines()]
    assert lines[0] == ["setting", "data", "buffer", "method", *HEADER]
    assert lines[2][:4] == ["online", "cifar10", "200", "ER"]
    assert lines[2][4:] == ["34.00 ± 4.00 (3)", "36.05", "-2.05", "53.00 ± 3.61 (3)", "49.99", "+3.01"]
    assert lines[3][3:6] == ["ER + DDN (alpha=1, beta=0.9)", "40.00 (1), 1 of 2 runs", "41.93"]
    assert lines[4][3:7] == ["LUCIR", "not available", "23.59", "-"]
    assert lines[5][3:7] == ["my_method", "0 of 2 runs", "-", "-"]
    assert len({len(line) for line in lines}) == 1


def test_csv_and_json_hold_the_same_numbers() -> None:
    from_json = json.loads(as_json(ROWS))
    from_csv = list(csv.DictReader(as_csv(ROWS).splitlines()))
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in from_json] == from_csv
    first = from_json[0]
    assert (first["method"], first["n"], first["acc"], first["acc_std"]) == ("er", 3, 34, 4)
    assert (first["acc_paper"], first["acc_difference"]) == (36.05, -2.05)
    assert from_json[1]["acc_std"] is None
    assert from_json[2]["status"] == "not available"


def test_the_papers_numbers_are_left_out_with_the_reason_where_the_setting_differs() -> None:
    rows = compare_with_paper(TARGETS, RESULTS, reasons={ER: "width 20 instead of 64", DDN: "width 20 instead of 64"})
    text = as_markdown(rows)
    (line,) = [line for line in text.splitlines() if line.startswith("| online | cifar10 | 200 | ER |")]
    assert line.endswith("| 34.00 ± 4.00 (3) | - | - | 53.00 ± 3.61 (3) | - | - |")
    assert text.endswith(
        "\nWithout the paper's numbers:\n\n"
        "- ER, cifar10, 200; ER + DDN (alpha=1, beta=0.9), cifar10, 200: width 20 instead of 64\n"
    )
    first, *_, other, _ = json.loads(as_json(rows))
    assert (first["acc_paper"], first["acc_difference"]) == (None, None)
    assert first["why_not_the_papers"] == "width 20 instead of 64"
    assert (other["acc_paper"], other["why_not_the_papers"]) == (23.59, None)


def test_accuracies_per_task_are_beside_the_papers() -> None:
    target = Target(ER, 36.05, 49.99, (18.42, 83.44))
    (row,) = compare_with_paper([target], {ER: [RunResult(50, 0, (20.0, 80.0)), RunResult(50, 0, (22.0, 84.0))]})
    second = row.measures["task2"]
    assert second.ours is not None
    assert second.ours.mean == 82
    assert second.difference == pytest.approx(-1.44)
    header, _, line = as_markdown([row]).splitlines()
    assert "task 2 (paper)" in header
    assert "| 21.00 ± 1.41 (18.42) | 82.00 ± 2.83 (83.44) |" in line
    assert json.loads(as_json([row]))[0]["task1_paper"] == 18.42


def test_values_that_were_not_measured_are_ignored() -> None:
    assert estimate([None, None]) is None
    assert estimate([2.0, None, 4.0]) == estimate([2.0, 4.0])
