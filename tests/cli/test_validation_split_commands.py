"""A run with a validation split on the command line: its record, its resume, its evaluations and its tables."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_compare_command import write_run

from ddn_lightning.callbacks.run_record import _mean, _test_line
from ddn_lightning.cli import main
from ddn_lightning.runs.results import Results

CONFIGS = Path(__file__).parents[2] / "configs"
FIT = ["fit", "-c", str(CONFIGS / "quickstart.yaml"), "-c", str(CONFIGS / "setting" / "validation.yaml")]
FIT += ["--data.epochs_per_task=1", "--trainer.enable_progress_bar=false", "--name=mine"]


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("runs/mine/results.json").read_text())
    return found


def test_the_record_says_which_images_chose_and_which_were_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(FIT) == 0
    printed = capsys.readouterr().out
    found = results()
    assert found["measured_on"] == "validation"
    assert {key: found["validation"][key] for key in ("share", "per_class", "seed", "images")} == {
        "share": 0.1,
        "per_class": None,
        "seed": 0,
        "images": 142,
    }
    assert f"ACC on the test images, opened once: {found['test']['average_accuracy']:.2f}" in printed
    assert found["test"]["average_accuracy"] != found["average_accuracy"]
    assert len(found["test"]["accuracies"]) == len(found["test"]["task_il_accuracies"]) == 5

    assert main([*FIT, "--ckpt_path=last"]) == 0  # the run is finished
    again = results()
    assert again["test"] == found["test"]
    assert again["validation"] == found["validation"]

    run = ["-c", "runs/mine/config.yaml", "--ckpt_path=runs/mine/checkpoints/last.ckpt"]
    for command, expected in (("validate", found), ("test", found["test"])):
        capsys.readouterr()
        assert main([command, *run]) == 0
        assert f"{expected['average_accuracy']:.4f}"[:6] in capsys.readouterr().out


def test_test_images_of_some_tasks_give_no_accuracy_over_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--trainer.limit_test_batches=0.1"]) == 0  # less than a batch
    assert "ACC on the test images" not in capsys.readouterr().out
    assert results()["test"] is None
    assert main([*FIT, "--ckpt_path=last", "--trainer.limit_test_batches=0.1"]) == 0
    assert (_mean([60.0, None]), _mean([60.0, 70.0])) == (None, 65.0)
    whole = Results.from_json(Path("runs/mine/results.json").read_bytes())
    opened = replace(whole, test={"average_accuracy": None, "accuracies": [None, 60.0]})
    assert _test_line(opened).startswith("no ACC on the test images: trainer.limit_test_batches has left out a task")


def test_closed_test_images_are_never_loaded_and_the_record_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--data.closed_test=true"]) == 0
    found = results()
    assert (found["measured_on"], found["test"], found["data"]["test"]) == ("validation", None, None)
    assert found["average_accuracy"] > 20
    assert main(["test", "runs/mine"]) == 2
    assert "closed_test is true, so the test images must not be opened" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.validation_share=1.5"], "validation_share must be above 0 and below 1, got 1.5"),
        (["--data.validation_per_class=5"], "validation_share and validation_per_class exclude each other, got 0.1"),
        (["--data.validation_share=0.999"], "validation_share must leave training images of every class, got 0.999"),
    ],
)
def test_wrong_splits_are_one_line_and_leave_nothing(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FIT, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(Path().rglob("config.yaml"))


def test_tables_take_the_test_accuracy_and_name_the_images(capsys: pytest.CaptureFixture[str]) -> None:
    test = {"average_accuracy": 35.0, "accuracies": [30.0, 40.0]}
    split = {"measured_on": "validation", "dataset": "digits (validation split)"}
    write_run("split-1", 1, 50.0, test=test, **split)
    write_run("closed-2", 2, 51.0, test=None, **split)
    write_run("plain-3", 3, 52.0)
    assert main(["compare", "runs", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {(row["acc_mean"], row["measures"]) for row in rows} == {
        ("35.0", "ACC, task-IL ACC (test), FM, AAA (validation)"),
        ("51.0", "ACC, task-IL ACC, FM, AAA (validation)"),
        ("52.0", ""),
    }
    assert main(["compare", "runs"]) == 0
    assert capsys.readouterr().out.count("ACC, task-IL ACC (test), FM, AAA (validation).") == 1
    assert main(["report", "runs", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    both = ("ACC, task-IL ACC (test), FM, AAA (validation)", "ACC, task-IL ACC, FM, AAA (validation)")
    for expected in ("Measured on", *both, "ACC (test) 35.00 %"):
        assert expected in page
