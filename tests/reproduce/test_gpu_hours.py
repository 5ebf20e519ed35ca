"""The cost of the paper's runs: counted by hand here, and shown by the manual as it is computed."""

import json
import re
from pathlib import Path

import documents
import pytest
from documents import generated

from ddn_lightning.cli import main
from ddn_lightning.report.paper import paper_targets
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.reproduce.gpu_hours import SUSTAINED, cost_table, er_step_operations, er_steps, gpu_hours, steps_of

CONFIGS = Path(__file__).parents[2] / "configs"
RECORD = json.loads((CONFIGS.parent / "benchmarks/records/methods.json").read_text())
SPEED = {row["step of"]: row for row in RECORD["tables"]["A training step"]}
ER = Cell("online", "cifar10", 200, "er")


def convolutions(width: int, size: int) -> list[tuple[int, int, int, int]]:
    """Channels in and out, kernel and output size of each convolution of ResNet-18, the stem first."""
    found = [(3, width, 3, size)]
    channels = width
    for stage in range(4):
        out, size = width * 2**stage, size if stage == 0 else size // 2
        if stage:
            found.append((channels, out, 1, size))  # the shortcut
        found += [(channels, out, 3, size), *[(out, out, 3, size)] * 3]
        channels = out
    return found


@pytest.mark.parametrize(("width", "size"), [(64, 32), (64, 64), (20, 32)])
def test_an_er_step_is_a_forward_and_a_backward_pass_of_64_images(width: int, size: int) -> None:
    forward = [2 * one * other * kernel**2 * out**2 for one, other, kernel, out in convolutions(width, size)]
    expected = 64 * (3 * sum(forward) - forward[0])  # images need no gradient
    assert er_step_operations(width, size) == expected


def test_hours_are_steps_times_their_cost_over_the_rate() -> None:
    seconds = 1560 * er_step_operations(64, 32) / SUSTAINED
    assert gpu_hours([ER]) == pytest.approx(seconds / 3600)
    assert 30 < seconds < 40
    ddn = Cell("offline", "cifar10", 200, "er", "ddn")
    assert gpu_hours([ER, ddn]) == pytest.approx(seconds / 3600 * (1 + 50 * 313 / 312 * er_steps(ddn)))
    assert gpu_hours([ER], width=32) == pytest.approx(seconds / 3600 / 4, rel=0.01)
    assert gpu_hours([ER, Cell("offline", "digits", 100, "er")]) is None


def test_steps_are_those_of_whole_batches_online_and_of_all_offline() -> None:
    assert steps_of(Cell("online", "tiny_imagenet", 2000, "er")) == 10 * 312
    assert steps_of(Cell("online", "cifar100", 2000, "er")) == 10 * 156
    assert steps_of(Cell("offline", "cifar100", 2000, "er")) == 10 * 157 * 50


def test_learned_labels_cost_what_ddn_does_and_methods_what_was_measured() -> None:
    costs = {plugin: er_steps(Cell("online", "cifar10", 200, "er", plugin)) for plugin in ("none", "l2y", "ddn")}
    assert costs["l2y"] == costs["ddn"] > 3
    assert costs["none"] == 1
    assert er_steps(Cell("online", "cifar10", 200, "icarl")) == SPEED["ICaRL"]["in ER steps"] < 0.8


def test_the_manual_says_what_was_not_reached_and_its_cost() -> None:
    assert generated(documents.TEXT, "not reached").strip() == cost_table().strip()
    rows = [line.split(" | ") for line in cost_table().splitlines()[2:]]
    *parts, everything = ((int(row[3]), float(row[-1].strip(" |").replace(",", ""))) for row in rows)
    assert sum(cells for cells, _ in parts) == everything[0] == len(paper_targets())
    assert sum(hours for _, hours in parts) == pytest.approx(everything[1], abs=1)
    text = documents.PAGES["docs/science/results.md"]
    pattern = r"about (\d+) GPU hours.* (\d+) GFLOP at width 64.* sustains (\d+) GFLOP/s and would take (\d+) years"
    hours, operations, rate, years = map(int, re.search(pattern, text, re.S).groups())
    assert hours == pytest.approx(everything[1], abs=0.6)
    assert operations == round(er_step_operations(64, 32) / 1e9)
    on_a_core = er_step_operations(20, 32) / SPEED["ER"]["ms"] * 1e3
    assert rate == round(on_a_core / 1e9)
    assert years == round(everything[1] * SUSTAINED / on_a_core / 24 / 365)


def test_a_dry_run_says_what_the_runs_would_cost(capsys: pytest.CaptureFixture[str]) -> None:
    selected = ["table1", "--methods", "er", "--plugins", "none", "--datasets", "cifar10", "--configs", str(CONFIGS)]
    assert main(["reproduce", *selected, "--dry-run"]) == 0
    assert "20 runs, about 0.2 GPU hours at an assumed 10 TFLOP/s" in capsys.readouterr().err
    assert main(["reproduce", *selected, "--dry-run", "--", "--data.epochs_per_task", "5"]) == 0
    assert "GPU hours" not in capsys.readouterr().err
    digits = ["digits", "--methods", "er", "--configs", str(CONFIGS)]
    assert main(["reproduce", *digits, "--dry-run"]) == 0
    assert "GPU hours" not in capsys.readouterr().err
