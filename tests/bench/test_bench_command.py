import json

import pytest

from ddn_lightning.bench import growth, measure
from ddn_lightning.bench.loops import LOOPS
from ddn_lightning.bench.step_parts import PARTS
from ddn_lightning.bench.stopwatch import Timing
from ddn_lightning.cli import main

TINY = ["--width", "2", "--image_size", "8", "--batch", "4", "--rounds", "1", "--buffer_size", "20"]

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what only takes time: processes that start, and repetitions."""
    starts = {"import torch, lightning": Timing((2.0,)), "ddn --help": Timing((3.0,))}
    monkeypatch.setattr("ddn_lightning.bench.start_up.time_start_ups", lambda rounds: starts)
    monkeypatch.setattr(measure, "EMPTY_LOOP_STEPS", 3)
    monkeypatch.setattr(measure, "LOOP_STEPS", 3)
    monkeypatch.setattr(growth, "AXES", {"buffer_size": (20, 40), "num_classes": (4, 6)})
    monkeypatch.setattr("ddn_lightning.bench.pipeline.MEMORY_SIZES", (20, 200))


def test_numbers_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, "--method", "ICaRL", "--growth", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["steps"]) == ["ER", "ER + DDN", "ICaRL"]  # the unit is always there
    assert report["steps"]["ER"]["er_steps"] == 1
    assert report["steps"]["ER + DDN"]["er_steps"] > 1
    assert list(report["updates"]) == ["unrolled", "exact", "matching", "head", "step"]
    assert report["updates"]["exact"]["relative_error"] < 1e-4
    assert list(report["parts"]["ER + DDN"]) == list(PARTS)
    assert list(report["loops"]) == list(LOOPS)
    assert [(g["axis"], g["value"]) for g in report["growth"]] == [
        *(("buffer_size", 20), ("buffer_size", 40), ("num_classes", 4), ("num_classes", 6)),
        *(("devices", 1), ("devices", 2)),
    ]


def test_tables_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, "--method", "ER", "--precision", "bf16-mixed"]) == 0
    tables = capsys.readouterr().out
    assert "ResNet-18 of width 2, 4 incoming images of 8 x 8" in tables
    for row in (
        "| ER + DDN | ",
        "| exact | ",
        "| bare Lightning | ",
        "| augment, whole batch | ",
        "| `ddn --help` | 3.0",
    ):
        assert row in tables
    assert "what grows" not in tables


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "Replay"], "method must be one of BiC, CLSER, DERPlusPlus, ER,"),
        (["--method", "ReplayMethod"], "got ReplayMethod"),
        (["--device", "abacus"], "device must be one of this machine's, such as cpu, got abacus"),
        (["--width", "0"], "width must be positive, got 0"),
        (["--rounds", "0"], "rounds must be positive, got 0"),
        (["--num_classes", "7"], "num_classes must be even, for two tasks, got 7"),
        (["--batch", "1"], "batch must be at least 2"),
        (["--precision", "8-bit"], "(see 'ddn bench --help')"),
    ],
)
def test_mistakes_are_named_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_says_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    assert "--growth" in text
    assert "Measure on this machine what a step costs" in text
