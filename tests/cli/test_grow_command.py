"""The command ``ddn fit --grow RUN``."""

import contextlib
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bit_for_bit import difference

import ddn_lightning
from ddn_lightning.cli import main
from ddn_lightning.cli.evaluate_command import accuracy_rows
from ddn_lightning.cli.run_figures import RunFigures

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
DOMAINS = ["--data.stream=PermutedPixels", "--data.epochs_per_task=1", "--data.batch_size=64"]
QUIET = [
    "--trainer.limit_train_batches=4",
    "--trainer.limit_val_batches=2",
    "--trainer.log_every_n_steps=2",
    "--trainer.enable_progress_bar=false",
]
FIT = ["fit", "-c", str(QUICKSTART), *DOMAINS, *QUIET]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three domains, and one of five."""
    folder = tmp_path_factory.mktemp("finished") / "runs"
    fit = [*FIT, "--runs", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFigures, "_draw", lambda self, run: [])
        assert main([*fit, "--name", "three", "--data.num_tasks=3"]) == 0
        assert main([*fit, "--name", "five", "--data.num_tasks=5"]) == 0
    return folder


@pytest.fixture
def runs(finished: Path) -> Path:
    """A copy of both runs in the current folder."""
    shutil.copytree(finished, "runs")
    return Path("runs")


def state(run: Path) -> dict[str, Any]:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt")
    checkpoint["callbacks"].pop("RunRecord")  # the time that it took
    return {name: value for name, value in checkpoint.items() if name != "ddn_lightning"}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_grown_run_equals_one_over_all_tasks_and_leaves_the_finished_one_alone(runs: Path) -> None:
    before = contents(runs / "three")
    assert main(["fit", "--grow", "runs/three", "--data.num_tasks", "2"]) == 0
    assert contents(runs / "three") == before
    grown, five = runs / "three-grown", runs / "five"
    assert difference(state(grown), state(five)) is None
    assert (grown / "metrics.csv").read_text() == (five / "metrics.csv").read_text()
    results = [json.loads((run / "results.json").read_text()) for run in (grown, five)]
    for name in ("accuracy_matrix", "average_accuracy", "forgetting", "dataset", "steps", "status"):
        assert results[0][name] == results[1][name]


def test_a_grown_run_is_repeated_by_its_configuration_and_grown_again(runs: Path) -> None:
    assert main(["fit", "--grow=runs/three", "--data.num_tasks=1", "--name", "four"]) == 0
    assert main(["fit", "-c", "runs/four/config.yaml", "--name", "again"]) == 0
    assert difference(state(runs / "again"), state(runs / "four")) is None
    assert main(["fit", "--grow", "runs/four", "--name", "twice"]) == 0
    assert difference(state(runs / "twice"), state(runs / "five")) is None
    config = yaml.safe_load((runs / "twice" / "config.yaml").read_text())
    assert config["grow"] == "runs/four"
    assert main(["test", "runs/twice"]) == 0
    method = ddn_lightning.load("runs/twice")
    assert len(method.accuracy_matrix) == 5
    assert len(method.predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).names) == 1


def test_a_grown_run_that_was_stopped_is_resumed(runs: Path) -> None:
    grow = ["fit", "--grow", "runs/three", "--data.num_tasks=2", "--name", "grown"]
    assert main([*grow, "--trainer.max_steps", "14"]) == 0
    assert json.loads((runs / "grown" / "results.json").read_text())["tasks_finished"] == 3
    assert main([*grow, "--ckpt_path", "last"]) == 0
    assert difference(state(runs / "grown"), state(runs / "five")) is None


def test_a_grown_run_is_resumed_where_its_origin_is_no_more(runs: Path) -> None:
    grow = ["fit", "--grow", "runs/three", "--data.num_tasks=2", "--name", "grown"]
    assert main([*grow, "--trainer.max_steps", "14"]) == 0
    shutil.rmtree(runs / "three")
    resume = ["fit", "-c", "runs/grown/config.yaml", "--name", "grown", "--ckpt_path", "last", "--trainer.max_steps=-1"]
    assert main(resume) == 0
    assert difference(state(runs / "grown"), state(runs / "five")) is None


def test_a_run_with_tasks_of_other_sizes_grows_by_the_number_given() -> None:
    sizes = ["-c", str(QUICKSTART), "--data.task_sizes=[4,6]", "--data.epochs_per_task=1", *QUIET, "--name", "uneven"]
    assert main(["fit", *sizes]) == 0
    assert main(["fit", "--grow", "runs/uneven", "--data.num_tasks=1", "--name", "grown"]) == 0
    assert len(json.loads(Path("runs/grown/results.json").read_text())["accuracy_matrix"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grow", "runs/none"], "grow must be the folder of a finished run, got runs/none"),
        (["--grow"], "--grow must be the folder of a finished run, got nothing"),
        (["--grow", "runs/three", "--name", "three"], "name must be new, but runs/three exists already"),
        (["--grow", "runs/three", "--name=three", "--ckpt_path=last"], "name must be another one than that of the run"),
        (["--grow", "runs/three", "-c", str(QUICKSTART)], "-c must be left out with --grow"),
        (["--grow", "runs/three", "--seed_everything=7"], "--seed_everything must be left out with --grow: the random"),
        (["--grow", "runs/three", "--model", "DERPlusPlus"], "must be a checkpoint of DERPlusPlus"),
        (["--grow", "runs/three", "--model.backbone.width=3"], "another network or distiller, or damaged"),
        (
            ["--grow", "runs/three", "--data.batch_size=3"],
            "batch_size must be that of the sequence that goes on, 64, g",
        ),
        (["--grow", "runs/three", "--data.stream.seeds=3"], "Option 'seeds' is not accepted"),
        (["--grow", "runs/stopped"], "only a finished run can go on"),
    ],
)
def test_what_cannot_grow_is_refused_and_nothing_is_touched(
    runs: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "runs/stopped" in arguments:
        assert main([*FIT, "--name", "stopped", "--trainer.max_steps=9"]) == 0
    before = contents(runs)
    with contextlib.suppress(SystemExit):  # jsonargparse's
        assert main(["fit", *arguments]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert contents(runs) == before
    assert {path.name for path in runs.iterdir()} <= {"three", "five", "stopped"}


def test_outputs_to_spare_are_recorded(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = [*FIT, "--trainer.max_steps=3"]
    assert main([*fit, "--name", "spare", "--model.num_classes=12"]) == 0
    config = yaml.safe_load((runs / "spare" / "config.yaml").read_text())
    assert config["model"]["init_args"]["num_classes"] == 12
    assert ddn_lightning.load("runs/spare").num_classes == 12
    assert main([*fit, "--name", "few", "--model.num_classes=7"]) == 2
    assert "num_classes must be left out, or at least SplitDigits's 10, got 7" in capsys.readouterr().err


def test_other_images_of_a_class_that_came_twice_count_once() -> None:
    labels = torch.tensor([0, 1, 2])
    rows = accuracy_rows(torch.eye(3), labels, [[0, 1], [1, 2]], ("ant", "bee", "cat"))
    assert [row.name for row in rows] == [None, "ant", "bee", None, "cat", None]
    assert [row.images for row in rows] == [2, 1, 1, 1, 1, 3]


def test_a_run_measured_on_validation_images_and_within_tasks_goes_on_with_both() -> None:
    measured = ["--data.validation_per_class=9", "--anytime.every_n_steps=2", "--anytime.images=40"]
    assert main([*FIT, "--data.num_tasks=2", *measured, "--name", "two"]) == 0
    assert main(["fit", "--grow", "runs/two", "--data.num_tasks=1"]) == 0
    before, grown = (json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("two", "two-grown"))
    assert [len(found["test"]["accuracies"]) for found in (before, grown)] == [2, 3]  # opened after the last task
    assert (before["anytime"]["from_step"], grown["anytime"]["from_step"]) == (0, 8)
    _, *rows = csv.reader(Path("runs/two-grown/anytime.csv").read_text().splitlines())
    assert [row[0] for row in rows] == ["8", "10", "12"]  # before the switch, and after it
    _, *earlier = csv.reader(Path("runs/two/anytime.csv").read_text().splitlines())
    assert rows[0][2] == earlier[-1][2]  # samples seen


def test_a_run_goes_on_without_its_stream(runs: Path) -> None:
    grow = ["fit", "--grow", "runs/three", "--data.num_tasks=1", "--data.stream", "null", "--name", "plain"]
    assert main(grow) == 0
    more = yaml.safe_load((runs / "plain" / "config.yaml").read_text())["data"]["init_args"]["more"]
    assert more["init_args"]["stream"] is None
