"""The table of methods: costs and published numbers come from records, and none is without a source."""

import csv
import re
from pathlib import Path

import pytest

from ddn_lightning.names import METHODS
from study import published as module
from study.measured import measured_runs
from study.method_table import method_table, reached_table, step_cost
from study.published import measured, memory_table, published

LINES = [line.strip("| ").split(" | ") for line in method_table().splitlines() if line.startswith("| [")]
NAMES = {facts.key: name for name, facts in METHODS.items()}
ROWS = {NAMES[line[0].partition("](")[2].partition(".md)")[0]]: line for line in LINES}
HEADER = "data,network,setting,buffer_size,method,plugin,options,seed,acc,fm,per_task,calibrated_acc,calibrated_fm,"
RUNS = f"""{HEADER}cpu_minutes,command
cifar10,ResNet18 width 20,online,200,lode,none,,12,40,50,40,,,1,ddn fit
cifar10,ResNet18 width 20,online,200,lode,none,,13,44,50,44,,,1,ddn fit
cifar10,ResNet18 width 20,online,200,lode,none,,3,90,50,90,,,1,ddn fit
cifar10,ResNet18 width 20,online,200,lode,none,lr=1,12,80,50,80,,,1,ddn fit
cifar10,ResNet18 width 20 in bf16-mixed,online,200,lode,none,,14,70,50,70,,,1,ddn fit
cifar10,ResNet18 width 20,online,200,pcr,none,,12,80,50,80,,,1,ddn fit
cifar10,ResNet18 width 20 in bf16-mixed,online,200,pcr,none,lr=0.1,12,50,50,50,,,1,ddn fit
cifar10,ResNet18 width 20,online,0,joint,none,,12,60,,60,,,1,ddn fit
cifar10,ResNet18 width 20 in bf16-mixed,online,200,gdumb,none,,12,30,20,30,31,19,1,ddn fit
cifar10,ResNet18 width 20 in bf16-mixed,online,500,gdumb,none,,12,40,10,40,,,1,ddn fit
cifar10@16,ResNet18 width 16,online,200,scr,none,,12,80,50,80,,,1,ddn fit
"""


def test_every_method_has_a_line_with_its_page_and_its_cost() -> None:
    assert list(ROWS) == list(METHODS)
    assert {len(line) for line in LINES} == {6}
    for name, cells in ROWS.items():
        assert f"[{METHODS[name].title}]({METHODS[name].key}.md)" in cells[0]
        assert cells[4] == step_cost(name)
    assert step_cost("ER") == "1.00"
    assert float(step_cost("RAR")) > 8  # ten steps
    assert step_cost("Unknown") == "-"


def test_every_method_has_a_line_with_its_accuracy() -> None:
    lines = [line.strip("| ").split(" | ") for line in reached_table().splitlines() if line.startswith("| [")]
    reached = {line[0].partition("](")[2].removesuffix(".md)"): line[1:] for line in lines}
    assert reached.keys() == NAMES.keys()
    assert reached["er"] == [str(published("er")), measured("er")]
    assert reached["gss"][0] == "-"


def test_every_method_says_what_it_keeps() -> None:
    images, network = 200 * (3 * 32 * 32 + 3 * 8), 1_094_750 * 4 + 12_160  # in float32, with BatchNorm's
    kept = {name: ROWS[name][2] for name in ("ER", "DERPlusPlus", "CLSER", "Finetune")}
    outputs = 200 * 10 * 4
    expected = {"ER": images, "DERPlusPlus": images + outputs, "CLSER": images + 2 * network}
    assert kept == {name: f"{number / 1e6:.2f} MB" for name, number in expected.items()} | {"Finetune": "-"}


def test_no_cost_is_written_by_hand() -> None:
    assert not [name for name, facts in METHODS.items() if re.search(r"\d ER steps", facts.cost)]


def test_the_papers_number_comes_first_and_others_bring_their_source() -> None:
    assert str(published("er")) == "36.05 ([DDN paper](https://arxiv.org/abs/2505.20135))"
    assert published("gss") is None
    with Path(module.__file__).with_name("published.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["method"], row["buffer_size"]) for row in rows}) == len(rows)
    for row in rows:
        known = published(row["method"], int(row["buffer_size"]))
        assert row["method"] in {facts.key for facts in METHODS.values()}
        assert known is not None
        assert (known.acc, str(known.buffer_size)) == (row["acc"], row["buffer_size"])
        assert re.fullmatch(r"\[.+\]\(https://.+\)", known.source)
        assert ("M = " in str(known)) == (known.buffer_size != 200)


def test_ours_are_fresh_seeds_of_the_method_alone_at_the_nearest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measured_runs", lambda: measured_runs(RUNS))
    assert measured("lode") == "42.00 ± 2.83 (2)"
    assert measured("pcr") == "50.00 (1), bf16, lr=0.1"  # at the published learning rate
    assert measured("scr") == "not run yet"
    assert measured("joint") == "60.00 (1)"


def test_a_published_number_stands_beside_the_nearer_of_our_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measured_runs", lambda: measured_runs(RUNS.replace("lode", "der")))
    lines = [line.strip("| ").split(" | ") for line in memory_table().splitlines()[2:]]
    assert lines == [
        ["DER", "-", "42.00 ± 2.83 / 50.00 ± 0.00", "-", "25.80, M = 600", "-", "-"],
        ["GDumb", "35.0", "30.00 / 20.00, bf16", "31.00 / 19.00, bf16", "45.4", "40.00 / 10.00, bf16", "-"],
        ["PCR", "50.85", "50.00 / 50.00, bf16", "-", "-", "-", "-"],
    ]
    assert str(published("er", 500)) == "44.34 ([DDN paper](https://arxiv.org/abs/2505.20135), M = 500)"
