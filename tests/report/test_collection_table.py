"""The table of all methods, against values computed by hand."""

import csv
import json

from ddn_lightning.report.collection_table import as_csv, as_json, as_markdown, collect
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.results import RunResult

BED = ("offline", "digits", 100)
ER, HARD, DDN = Cell(*BED, "er"), Cell(*BED, "er", "hard"), Cell(*BED, "er", "ddn")
DER, MINE = Cell(*BED, "der"), Cell(*BED, "mine")
RESULTS = {
    ER: [RunResult(80.0, 20.0, (), 84.0, 10.0), RunResult(82.0, 26.0, (), 85.0, 14.0)],
    HARD: [RunResult(90.0, 5.0, (), 91.0, None), None],
    DDN: [None, None],
    DER: [RunResult(70.0, None), RunResult(72.0, None)],
}
ENTRIES = collect([ER, HARD, DDN, DER, MINE], RESULTS, {HARD: 1})


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_a_method_has_one_line_with_all_its_arms() -> None:
    header, _, er, der, mine = cells(as_markdown(ENTRIES))
    names = ["alone", "alone, calibrated", "+ hard draw", "+ hard draw, calibrated", "+ DDN", "+ DDN, calibrated"]
    assert header == ["setting", "data", "buffer", "method", *(f"{name}: ACC ↑ / FM ↓" for name in names)]
    assert er[:4] == ["offline", "digits", "100", "ER"]
    assert er[4:6] == ["81.00 ± 1.41 / 23.00 ± 4.24 (2)", "84.50 ± 0.71 / 12.00 ± 2.83 (2)"]
    assert der[3:] == ["DER", "71.00 ± 1.41 / - (2)", "-", "-", "-", "-", "-"]
    assert mine[3:5] == ["mine", "not available"]


def test_missing_and_diverged_runs_are_named_beside_what_there_is() -> None:
    _, _, er, *_ = cells(as_markdown(ENTRIES))
    assert er[6:] == ["90.00 / 5.00 (1), 1 of 2 runs, 1 diverged", "91.00 / - (1)", "0 of 2 runs", "-"]


def test_arms_that_were_not_selected_have_no_column() -> None:
    header, *_ = cells(as_markdown(collect([ER, DDN], RESULTS)))
    assert [name.partition(":")[0] for name in header[4:]] == [
        *["alone", "alone, calibrated"],
        *["+ DDN", "+ DDN, calibrated"],
    ]


def test_programs_get_a_record_for_each_method_and_plugin() -> None:
    records = json.loads(as_json(ENTRIES))
    assert [(record["method"], record["plugin"], record["n"]) for record in records] == [
        *[("er", "none", 2), ("er", "hard", 1), ("er", "ddn", 0), ("der", "none", 2), ("mine", "none", 0)]
    ]
    assert (records[0]["acc"], records[0]["calibrated_fm"], records[0]["calibrated_fm_std"]) == (81.0, 12.0, 2.8284)
    assert (records[3]["fm"], records[3]["calibrated_acc"], records[4]["status"]) == (None, None, "not available")
    lines = list(csv.DictReader(as_csv(ENTRIES).splitlines()))
    assert [line["acc"] for line in lines] == ["81.0", "90.0", "", "71.0", ""]
