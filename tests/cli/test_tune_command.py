"""``ddn tune``: the same budget for each study, no look at the test images, and the same trials after a kill."""

import csv
import functools
import json
import multiprocessing
import os
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.trial import FrozenTrial

from ddn_lightning.cli import main
from ddn_lightning.cli import reproduce_command as command
from ddn_lightning.data.split_digits import SplitDigits
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.reproduce.executor import ProcessExecutor
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Options, plan
from ddn_lightning.reproduce.presets import read_presets
from ddn_lightning.runs.files import try_lock
from ddn_lightning.tune.study import ArmStudy

CONFIGS = Path(__file__).parents[2] / "configs"
STAND_IN = (sys.executable, str(Path(__file__).parents[1] / "tune/stand_in_fit.py"))
FOLDER = Path("runs/tune")
SHORT = ("--", "--data.epochs_per_task", "1", "--trainer.limit_train_batches", "2", "--trainer.log_every_n_steps", "1")


def tune(*arguments: str) -> int:
    return main(["tune", "--configs", str(CONFIGS), *arguments])


def trials(name: str, folder: Path = FOLDER) -> list[FrozenTrial]:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'study.db'}").trials


def best(name: str) -> dict[str, Any]:
    return max(trials(name), key=lambda trial: trial.values[0]).params


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ProcessExecutor", functools.partial(ProcessExecutor, program=STAND_IN))
    monkeypatch.setattr("ddn_lightning.reproduce.executor.POLL_SECONDS", 0.005)
    monkeypatch.setattr(ArmStudy, "draw", lambda self, folder: None)  # takes seconds


@pytest.mark.usefixtures("stand_in")
def test_each_study_gets_the_same_trials_and_gives_an_overlay_and_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--methods", "er", "--plugins", "none", "hard,ddn", "--trials", "2")
    assert tune(*options) == 0
    printed = capsys.readouterr()
    assert [len(trials(name)) for name in ("er", "er-hard", "er-ddn")] == [2] * 3
    assert "er-hard trial 2 of 2: " in printed.err
    assert "first 3 tasks of another class order" in printed.out
    assert "| ER + DDN | 2 | " in printed.out

    text = (FOLDER / "er-ddn.yaml").read_text()
    values = best("er-ddn")
    model = yaml.safe_load(text)["model"]["init_args"]
    assert model["lr"] == values["model.lr"]
    assert model["distiller"]["init_args"]["alpha"] == values["model.distiller.alpha"]
    assert model["momentum"] == 0  # from the preset
    for words in ("seeds that chose: 1000", "class_order_seed 1000; then fixed", "trials: 2 of 2", "'low': 0.003"):
        assert words in text
    files = (CONFIGS / "base.yaml", CONFIGS / "plugin/ddn.yaml", FOLDER / "er-ddn.yaml")
    with pytest.raises(SystemExit) as stop:
        main(["fit", *(word for path in files for word in ("-c", str(path))), "--print_config"])
    assert stop.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model"]["init_args"]["lr"] == values["model.lr"]
    assert config["chosen_on_seeds"] == [1000]  # a report warns where they are reported

    rows = list(csv.DictReader((FOLDER / "tuned.csv").read_text().splitlines()))
    assert [(row["method"], row["plugin"]) for row in rows] == [("er", "none"), ("er", "hard"), ("er", "ddn")]
    assert "whole" not in rows[0]["source"]


@pytest.mark.usefixtures("stand_in")
def test_a_preset_with_an_object_that_has_options_gives_an_overlay(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--methods", "rar", "--preset", "tuned", "--trials", "1") == 0
    capsys.readouterr()
    files = (CONFIGS / "base.yaml", CONFIGS / "method/rar.yaml", FOLDER / "rar.yaml")
    with pytest.raises(SystemExit) as stop:
        main(["fit", *(word for path in files for word in ("-c", str(path))), "--print_config"])
    assert stop.value.code == 0
    augmentation = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["rand_augment"]
    assert augmentation["init_args"] == {"operations": 1, "magnitude": 14}


@pytest.mark.usefixtures("stand_in")
def test_reproduce_takes_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--methods", "er", "--trials", "2", "--", "--data.epochs_per_task", "3", "--data.batch_size=8") == 0
    capsys.readouterr()
    tuned = str(FOLDER / "tuned.csv")
    cell, rows = Cell("offline", "digits", 100, "er"), read_presets(CONFIGS, tuned)
    (run,) = plan([cell], [7], rows, Options(CONFIGS, FOLDER, tuned))
    words = run.command()
    options = dict(pairwise(words))
    assert options["--model.lr"] == str(best("er")["model.lr"])
    assert (options["--data.epochs_per_task"], options["--data.batch_size"]) == ("3", "8")  # as the trials had it
    assert options["--chosen_on_seeds"] == "[1000]"
    assert not any(word.startswith("--data.closed_test") for word in words)
    preset = ("--preset", tuned, "--configs", str(CONFIGS), "--dry-run")
    assert main(["reproduce", "digits", "--methods", "er", "--plugins", "none", "ddn", *preset]) == 2
    assert "must have a row for each cell, got none for offline digits 100 er ddn" in capsys.readouterr().err
    assert main(["reproduce", "digits", "--preset", "nowhere.csv", "--configs", str(CONFIGS)]) == 2
    assert "or an existing file, got nowhere.csv" in capsys.readouterr().err


@pytest.mark.usefixtures("stand_in")
def test_a_trial_with_a_diverged_run_does_not_win(capsys: pytest.CaptureFixture[str]) -> None:
    (FOLDER / "er").mkdir(parents=True)
    (FOLDER / "er/diverging").write_text("trial-002-seed1001")
    assert tune("--methods", "er", "--trials", "4", "--seeds", "1000", "1001") == 0
    assert [trial.values[0] == 0 for trial in trials("er")] == [False, False, True, False]
    assert "er trial 3 of 4: diverged, best" in capsys.readouterr().err


@pytest.mark.usefixtures("stand_in")
def test_the_whole_sequence_is_named_as_peeking(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--methods", "er", "--trials", "1", "--protocol", "whole") == 0
    assert "peeks: the hyper-parameters have seen all tasks" in capsys.readouterr().out
    assert "peeks" in (FOLDER / "er.yaml").read_text()
    assert "peeks" in (FOLDER / "tuned.csv").read_text()
    (results,) = FOLDER.glob("er/trial-000-*/results.json")
    assert json.loads(results.read_text())["tasks_finished"] == 5


@pytest.mark.usefixtures("stand_in")
def test_a_failed_run_stops_its_study_only_and_the_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    (FOLDER / "er").mkdir(parents=True)
    (FOLDER / "er/poison").write_text("trial-001")
    options = ("--methods", "er", "--plugins", "none", "hard", "--trials", "3")
    assert tune(*options) == 1
    assert "error: poisoned" in capsys.readouterr().err
    assert [len(trials(name)) for name in ("er", "er-hard")] == [1, 3]
    (FOLDER / "er/poison").unlink()
    assert tune(*options) == 0
    assert [len(trials(name)) for name in ("er", "er-hard")] == [3, 3]
    starts = Counter(line[: len("trial-000")] for line in (FOLDER / "er/starts").read_text().splitlines())
    assert starts == {"trial-000": 1, "trial-001": 2, "trial-002": 1}


@pytest.mark.usefixtures("stand_in")
def test_a_search_without_a_good_trial_offers_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    (FOLDER / "er").mkdir(parents=True)
    (FOLDER / "er/poison").write_text("trial-000")
    assert tune("--methods", "er", "--trials", "1") == 1
    assert "With these values" not in capsys.readouterr().out
    (FOLDER / "er/poison").unlink()
    assert tune("--methods", "er", "--trials", "1") == 0
    assert "With these values: ddn reproduce ... --preset runs/tune/tuned.csv" in capsys.readouterr().out


@pytest.mark.usefixtures("stand_in")
def test_killed_at_five_random_moments_the_search_ends_as_an_undisturbed_one() -> None:
    options = ("--methods", "er", "--plugins", "hard", "--trials", "12", "--at_once", "2", "--jobs", "2")
    assert tune(*options, "--name", "undisturbed") == 0
    fork = multiprocessing.get_context("fork")
    moments, kills = random.SystemRandom(), []
    while len(kills) < 5:
        process = fork.Process(target=tune, args=options)
        process.start()
        kills.append(moments.uniform(0, 1.5))
        process.join(kills[-1])
        process.kill()
        process.join()
    assert tune(*options) == 0
    pairs = zip(trials("er-hard"), trials("er-hard", Path("runs/undisturbed")), strict=True)
    assert all((one.params, one.values) == (other.params, other.values) for one, other in pairs), kills
    names = ("er-hard.yaml", "tuned.csv")
    texts = [[(folder / name).read_text() for name in names] for folder in (FOLDER, Path("runs/undisturbed"))]
    assert texts[0] == [text.replace("undisturbed", "tune").replace(" --name tune", "") for text in texts[1]], kills


@pytest.mark.usefixtures("stand_in")
def test_a_result_that_the_user_has_changed_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--methods", "er", "--trials")
    assert tune(*options, "1") == tune(*options, "2") == 0
    for name in ("er.yaml", "tuned.csv"):
        path = FOLDER / name
        text = path.read_text()
        path.write_text(f"{text}\n")
        assert tune(*options, "3") == 2
        assert f"{path} was not written by a run here, or was changed since" in capsys.readouterr().err
        assert path.read_text() == f"{text}\n"
        path.write_text(text)
    assert tune(*options, "3") == 0


@pytest.mark.usefixtures("stand_in")
def test_a_trial_measured_on_test_images_ends_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    (FOLDER / "er").mkdir(parents=True)
    (FOLDER / "er/peeking").write_text("trial-000")
    assert tune("--methods", "er", "--trials", "2") == 2
    assert "must be measured on validation images alone, got test: others would choose" in capsys.readouterr().err


def test_a_trial_never_opens_the_test_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--methods", "er", "--dry-run", *SHORT) == 0
    trial = shlex.split(capsys.readouterr().out)[1:]
    load, opened = SplitDigits.load, []

    def watched(self: SplitDigits, train: bool) -> object:
        opened.append(train)
        return load(self, train)

    monkeypatch.setattr(SplitDigits, "load", watched)
    assert main([*trial, "--trainer.enable_progress_bar=false"]) == 0
    assert opened == [True]
    results = json.loads(next(FOLDER.glob("er/trial-000-seed1000-*/results.json")).read_text())
    assert (results["measured_on"], results["test"], results["status"]) == ("validation", None, "stopped")

    monkeypatch.setattr(TaskSequence, "val_dataloader", TaskSequence.test_dataloader)  # swapped
    assert main([*trial, "--name", "swapped", "--trainer.enable_progress_bar=false"]) == 2
    assert "closed_test is true, so the test images must not be opened" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "nope"), "method must be among a_gem, bic, cls_er"),
        (("--methods", "er", "--plugins", "nope"), "plugin must be among cba, ddn, hard"),
        (("--methods", "er", "--dataset", "nope"), "data must be among cifar10"),
        (("--methods", "er", "--seeds", "7"), "seeds must be 1000 or more, got 7"),
        (("--methods", "er", "--trials", "0"), "trials must be positive, got 0"),
        (("--methods", "er", "--buffer", "0"), "buffer must be positive, got 0"),
        (("--methods", "er", "--validation_share", "1"), "validation_share must be above 0 and below 1, got 1.0"),
        (("--methods", "er", "--preset", "nope"), "preset must be among default, paper, tuned, got nope"),
        (("--methods", "er", "--", "--data.closed_test", "false"), "--data.closed_test must be left out after --"),
        (
            ("--methods", "er", "--", "lr"),
            "arguments after -- must be options such as",
        ),
        (("--methods", "er", "--", "--model.nope", "1"), "model: Option 'nope' is not accepted"),
        ((), "methods"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = tune(*arguments)
    except SystemExit as stop:  # by the parser of ddn fit
        code = int(stop.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_range_of_an_unknown_option_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = tmp_path / "mine"
    configs.mkdir()
    for path in CONFIGS.iterdir():
        if path.name != "tune":
            (configs / path.name).symlink_to(path)
    (configs / "tune").mkdir()
    (configs / "tune/er.yaml").write_text("model.learning_rate: {low: 0.1, high: 1.0}")
    with pytest.raises(SystemExit) as stop:
        main(["tune", "--methods", "er", "--configs", str(configs)])
    assert stop.value.code == 2
    assert "learning_rate" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.usefixtures("stand_in")
def test_a_search_does_not_replace_the_studies_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--methods", "er", "--trials", "1") == 0
    before = (FOLDER / "tuned.csv").read_text()
    assert tune("--methods", "derpp", "--trials", "1") == 2
    assert "runs/tune has studies that this search leaves out, er + none" in capsys.readouterr().err
    assert (FOLDER / "tuned.csv").read_text() == before
    assert tune("--methods", "er", "derpp", "--trials", "1") == 0
    assert [len(trials(name)) for name in ("er", "derpp")] == [1, 1]


def test_two_searches_cannot_share_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    FOLDER.mkdir(parents=True)
    lock = try_lock(FOLDER)
    assert lock is not None
    assert tune("--methods", "er") == 2
    assert "runs/tune is in use: another process is tuning there" in capsys.readouterr().err
    os.close(lock)


def test_a_missing_optuna_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert tune("--methods", "er") == 2
    assert 'not installed: pip install -e ".[tune]"' in capsys.readouterr().err
