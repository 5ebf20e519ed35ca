"""The command line, run in this process."""

import contextlib
import csv
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from bit_for_bit import difference
from PIL import Image

from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.cli import main
from ddn_lightning.cli.parser import class_names
from ddn_lightning.runs.run_folder import RunFolder

CONFIGS = Path(__file__).parents[2] / "configs"
SHORT = ["--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1", "--trainer.enable_progress_bar=false"]

STOPPED = ["--trainer.max_steps=5", "--save_every_n_minutes=0"]


def fit(*options: str) -> int:
    return main(["fit", "-c", str(CONFIGS / "quickstart.yaml"), *SHORT, *options])


def test_a_run_leaves_its_configuration_results_and_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "first", "--seed_everything", "3", "--model.buffer_size", "50") == 0
    folder = Path("runs/first")
    results = json.loads((folder / "results.json").read_text())
    assert (results["method"], results["plugin"], results["dataset"]) == ("ER", None, "digits")
    assert (results["seed"], results["buffer_size"], results["tasks_finished"]) == (3, 50, 5)
    assert results["seconds"] > 0
    assert results["cpu_minutes"] > 0
    assert results["versions"]["torch"] == torch.__version__.partition("+")[0]

    matrix = results["accuracy_matrix"]
    assert [[value is not None for value in row] for row in matrix] == [[i <= t for i in range(5)] for t in range(5)]
    assert results["average_accuracy"] == pytest.approx(sum(matrix[-1]) / 5, abs=1e-3)
    assert results["backward_transfer"] == pytest.approx(
        sum(matrix[-1][i] - matrix[i][i] for i in range(4)) / 4, abs=1e-3
    )
    drops = [max(matrix[t][i] for t in range(i, 5)) - matrix[-1][i] for i in range(4)]
    assert results["forgetting"] == pytest.approx(sum(drops) / 4, abs=1e-3)
    assert results["task_il_average_accuracy"] == pytest.approx(sum(results["task_il_matrix"][-1]) / 5, abs=1e-3)
    assert results["task_il_average_accuracy"] > results["average_accuracy"]
    assert results["chosen_on_seeds"] == []

    with (folder / "accuracy_matrix.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["after_task", "task_1", "task_2", "task_3", "task_4", "task_5"]
    assert [float(value) for value in rows[-1][1:]] == matrix[-1]

    printed = capsys.readouterr().out
    assert "task 5" in printed
    assert f"{results['average_accuracy']:.2f}" in printed
    assert "runs/first/" in printed
    assert "ddn report runs/first --open" in printed
    assert (folder / "metrics.csv").exists()


def test_the_saved_configuration_repeats_the_run() -> None:
    assert fit("--name", "first", "--model.lr", "0.05") == 0
    assert main(["fit", "-c", "runs/first/config.yaml", "--name", "again"]) == 0
    first, again = (json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("first", "again"))
    assert first["accuracy_matrix"] == again["accuracy_matrix"]
    assert yaml.safe_load(Path("runs/again/config.yaml").read_text())["model"]["init_args"]["lr"] == 0.05


def test_the_seeds_that_chose_a_configuration_stay_with_it() -> None:
    Path("tuned.yaml").write_text("model: {init_args: {lr: 0.05}}\nchosen_on_seeds: [0, 7]\n")
    assert fit("-c", "tuned.yaml", "--name", "first") == 0
    assert json.loads(Path("runs/first/results.json").read_text())["chosen_on_seeds"] == [0, 7]
    assert yaml.safe_load(Path("runs/first/config.yaml").read_text())["chosen_on_seeds"] == [0, 7]


def test_a_name_is_never_taken_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine") == 0
    before = Path("runs/mine/results.json").read_text()
    assert fit("--name", "mine", "--seed_everything", "1") == 2
    assert "name must be new, but runs/mine exists already" in capsys.readouterr().err
    assert Path("runs/mine/results.json").read_text() == before
    assert fit() == fit() == 0
    assert fit("--model.distiller", "LabelSmoothing") == 0
    names = ["er-digits-seed0", "er-digits-seed0-2", "er-label_smoothing-digits-seed0", "mine"]
    assert sorted(path.name for path in Path("runs").iterdir()) == names


def test_a_checkpoint_resumes_validates_and_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine") == 0
    (checkpoint,) = Path("runs/mine/checkpoints").glob("*.ckpt")
    config = ["-c", "runs/mine/config.yaml", "--ckpt_path", str(checkpoint)]
    assert main(["fit", *config, "--name", "resumed"]) == 0
    capsys.readouterr()
    first, resumed = (json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("mine", "resumed"))
    assert first["accuracy_matrix"] == resumed["accuracy_matrix"]
    accuracy = first["average_accuracy"]
    for command in ("validate", "test"):
        assert main([command, *config]) == 0
        assert f"{accuracy:.2f}"[:4] in capsys.readouterr().out


def test_another_definition_of_forgetting_is_used_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--trainer.callbacks+=Forgetting", "--trainer.callbacks.over=tasks", "--trainer.callbacks.reference=first"]
    assert fit("--name", "own", *own) == 0
    results = json.loads(Path("runs/own/results.json").read_text())
    matrix = results["accuracy_matrix"]
    expected = sum(matrix[i][i] - matrix[-1][i] for i in range(4)) / 5
    assert results["forgetting"] == pytest.approx(expected, abs=1e-3)
    assert results["forgetting_definition"] == {"over": "tasks", "reference": "first"}
    assert f"{results['forgetting']:.2f}" in capsys.readouterr().out
    with Path("runs/own/metrics.csv").open() as file:
        logged = [float(row["forgetting"]) for row in csv.DictReader(file) if row["forgetting"]]
    assert logged[-1] == pytest.approx(expected, abs=1e-3)


def test_only_a_runs_own_checkpoint_may_continue_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "first") == 0
    assert fit("--name", "second", "--seed_everything", "5") == 0
    (checkpoint,) = Path("runs/first/checkpoints").glob("*.ckpt")
    before = Path("runs/second/results.json").read_text()
    assert fit("--name", "second", "--ckpt_path", str(checkpoint)) == 2
    assert "runs/second exists already" in capsys.readouterr().err
    assert Path("runs/second/results.json").read_text() == before


@pytest.mark.parametrize("dangling", [True, False])
def test_runs_must_be_a_folder(dangling: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if dangling:
        Path("elsewhere").symlink_to("nowhere")
    else:
        Path("elsewhere").write_text("a file")
    assert fit("--runs", "elsewhere") == 2
    assert "runs must be a folder that can be created, got elsewhere" in capsys.readouterr().err


def test_a_resumed_run_adds_to_the_time_spent() -> None:
    record = RunRecord(RunFolder(Path("folder")), "")
    record.load_state_dict({"seconds": 1000.0, "processor_seconds": 2000.0, "config": ""})
    assert 1000 <= record.state_dict()["seconds"] < 1100
    assert 2000 <= record.state_dict()["processor_seconds"] < 2100


def test_processor_time_counts_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord(RunFolder(Path("folder")), "")
    clock = iter([10.0, 13.0])
    monkeypatch.setattr("ddn_lightning.callbacks.run_record.time.process_time", lambda: next(clock))
    record.on_train_start(SimpleNamespace(world_size=2, is_global_zero=False), None)  # type: ignore[arg-type]
    assert record.state_dict()["processor_seconds"] == 6.0


def test_a_distiller_with_alpha_0_gives_the_numbers_of_the_method_alone() -> None:
    plugged = ["--model.distiller", "DataDistillNet"]
    assert fit("--name", "alone") == 0
    assert fit("--name", "silent", *plugged, "--model.distiller.alpha", "0") == 0
    assert fit("--name", "plugged", *plugged) == 0
    alone, silent, distilled = (
        json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("alone", "silent", "plugged")
    )
    assert (alone["plugin"], silent["plugin"]) == (None, "DataDistillNet")
    assert alone["accuracy_matrix"] == silent["accuracy_matrix"]
    assert alone["accuracy_matrix"] != distilled["accuracy_matrix"]


def test_fast_dev_run_leaves_no_files() -> None:
    assert fit("--trainer.fast_dev_run", "true") == 0
    assert not Path("runs").exists()


@pytest.mark.usefixtures("drawn")
def test_other_loggers_or_none_can_be_chosen() -> None:
    assert fit("--name", "without", "--trainer.logger", "false") == 0
    assert sorted(path.name for path in Path("runs/without").iterdir()) == [
        "accuracy_matrix.csv",
        "checkpoints",
        "config.yaml",
        "figures",
        "files.json",
        "observations.npz",
        "results.json",
    ]
    own = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "elsewhere"]
    assert fit("--name", "own", *own) == 0
    assert list(Path("elsewhere").rglob("metrics.csv"))
    assert Path("runs/own/results.json").exists()


def test_classes_have_short_names_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"ER", "Finetune", "Joint"} <= set(class_names("model"))
    assert {"ResNet18", "SmallNet"} <= set(class_names("backbone"))
    assert {"SGD", "AdamW"} <= set(class_names("optimizer"))
    assert not {"Optimizer", "LBFGS"} & set(class_names("optimizer"))
    with pytest.raises(SystemExit) as exit_info:
        main(["fit", "--model.help", "ER"])
    assert exit_info.value.code == 0
    explained = " ".join(capsys.readouterr().out.split())
    assert "Number of samples in the memory" in explained
    assert "Whether the incoming and the replayed batch are forwarded together" in explained
    assert "Whether to predict only classes seen so far" in explained


def bad(*options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run with a mistake: exit code 2, no traceback, nothing left behind; returns the message."""
    before = {path for path in Path().rglob("*") if path != Path("runs")}
    try:
        code: Any = fit(*options)
    except SystemExit as error:
        code = error.code
    message = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in message
    assert sum("error" in line for line in message.splitlines()) == 1
    assert {path for path in Path().rglob("*") if path != Path("runs")} == before
    return message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--model=LoDM", "--model.memory=RingBuffer"],
            "model.memory: RingBuffer is not one that this method can take",
        ),
        (["--model", "ERR"], "model: ERR is not a known class; the choices are "),
        (
            ["--data", "SplitDigit"],
            "SplitDigit is not a known class; the choices are GrownSequence, SplitCIFAR10, SplitCIFAR100, ",
        ),
        (["--model.backbone", "Resnet"], "model.backbone: Resnet is not a known class; the choices are"),
        (["--model.buffer_size", "-5"], "buffer_size must be positive, got -5"),
        (["--model.lr", ".inf"], "lr must be finite, got inf"),
        (["--model.momentum", "2"], "momentum must be zero or above and below 1, got 2.0"),
        (["--model.lr_milestones", "[-1]"], "lr_milestones must be zero or positive, got -1"),
        (["--model.num_classes", "7"], "model.num_classes must be left out, or at least SplitDigits's 10, got 7"),
        (["--model.lr", "abc"], "model.lr must be a number, got abc"),
        (["--model.optimizer", "Foo"], "model.optimizer: Foo is not a known class; the choices are ASGD, Adadelta, "),
        (["--model.lr_scheduler", "Foo"], "the choices are ChainedScheduler, ConstantLR, CosineAnnealingLR, "),
        (
            ["--model.optimizer=AdamW", "--model.optimizer.lr=abc"],
            "error: model.optimizer.lr must be a number, got abc\n",
        ),
        (
            ["--model.optimizer=AdamW", "--model.optimizer.foo=1"],
            "error: model.optimizer: Option 'foo' is not accepted\n",
        ),
        (
            ["--model.lr_scheduler=CosineAnnealingLR"],
            "error: model.lr_scheduler: the following arguments are required: T_max\n",
        ),
        (["--model.batches", "both"], "model.batches: Expected one of 'separate', 'concatenated'. Got value: both"),
        (["--model.bufer_size", "5"], "model: Option 'bufer_size' is not accepted"),
        (["--chosen_on_seeds", "[-1]"], "chosen_on_seeds"),
        (["--seed_everything", "x"], "seed_everything must be a whole number, true or false, got x\n"),
        (["--data.task_sizes", "5"], "data.task_sizes: Expected a list; got 5\n"),
        (["--trainer.precision", "17"], "'32', '16', 'bf16'; got 17\n"),
        (["--chosen_on_seeds", "0,1"], "chosen_on_seeds: Expected a list, such as '[0,1]'. Got value: 0,1\n"),
        (["--model.lr_milestones", "1,2"], "model.lr_milestones: Expected a list, such as '[1,2]'. Got value: 1,2\n"),
        (["--data.epochs_per_task", "0"], "epochs_per_task must be positive, got 0"),
        (["--data.num_tasks", "3"], "num_tasks must divide the 10 classes of SplitDigits, got 3"),
        (["--trainer.max_epochs", "7"], "max_epochs must be 25 = 5 tasks x 5 epochs_per_task, or left out, got 7"),
        (["--trainer.gradient_clip_val", "1"], "gradient_clip_val must be left out, got 1"),
        (["--trainer.strategy", "no_such"], "no_such"),
        pytest.param(
            ["--trainer.accelerator", "gpu"],
            "torch finds none: pass --trainer.accelerator cpu\n",
            marks=pytest.mark.skipif(torch.accelerator.is_available(), reason="there is one"),
        ),
        (["--ckpt_path", "nowhere.ckpt"], "ckpt_path must be an existing file, 'last' or 'auto', got nowhere.ckpt"),
        (["--data", "SplitCIFAR10", "--data.root", "nowhere"], "expected CIFAR10 in"),
        (["--data", "SplitTinyImageNet", "--data.root", "nowhere"], "expected Tiny ImageNet in"),
        (["--data", "SplitImageFolder", "--data.root", "nowhere"], "nowhere: it does not exist"),
        (["--model.backbone", "ResNet18"], "of shape (1, 8, 8), but ResNet18 does not"),
        (["--model.backbone.width", "0"], "width must be positive, got 0"),
        (["--data.evaluate_every_n_epochs", "0"], "evaluate_every_n_epochs must be positive, got 0"),
        (["--trainer.val_check_interval", "1000"], "val_check_interval"),
        (["--trainer.callbacks+=Forgetting", "--trainer.callbacks.over=task"], "one of 'previous', 'tasks'"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--model.distiller", "DDN"], "the choices are BiasAdaptor, DataDistillNet, LabelSmoothing"),
        (["--model.distiller", "DataDistillNet", "--model", "Finetune"], "Finetune cannot take a distiller"),
        (["--model.distiller", "DataDistillNet", "--model.distiller.beta", "3"], "beta must be between 0 and 1, got 3"),
    ],
)
def test_user_errors_name_the_option(options: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in bad(*options, capsys=capsys)


def test_the_optimizer_given_at_a_resume_runs_and_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    adamw = ["--name=mine", "--model.optimizer=AdamW"]
    assert fit(*adamw, "--model.optimizer.lr=0.001", "--trainer.max_steps=3") == 0
    assert fit(*adamw, "--model.optimizer.lr=0.00001", "--trainer.max_steps=6", "--ckpt_path=last") == 0
    assert "model.optimizer.lr is 1e-05 from now on, as given (0.001 in the checkpoint)" in capsys.readouterr().err
    (state,) = torch.load("runs/mine/checkpoints/last.ckpt", weights_only=True)["optimizer_states"]
    assert state["param_groups"][0]["lr"] == 1e-5
    recorded = yaml.safe_load(Path("runs/mine/config.yaml").read_text())["model"]["init_args"]["optimizer"]
    assert float(recorded["init_args"]["lr"]) == 1e-5
    with_sgd = ["--name=mine", "--model.optimizer=SGD", "--ckpt_path=last"]
    assert "the checkpoint's optimizer is AdamW, got SGD" in bad(*with_sgd, capsys=capsys)


def test_checkpoints_that_do_not_fit_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine") == 0
    (checkpoint,) = Path("runs/mine/checkpoints").glob("*.ckpt")
    capsys.readouterr()
    wrong = ["--ckpt_path", str(checkpoint), "--model"]
    assert "must be a checkpoint of Joint, but" in bad(*wrong, "Joint", capsys=capsys)
    Path("cut.ckpt").write_bytes(checkpoint.read_bytes()[:1000])
    assert "cut.ckpt is damaged, or is no checkpoint" in bad("--ckpt_path", "cut.ckpt", capsys=capsys)
    torch.save({"state_dict": {}}, "foreign.ckpt")
    assert "is no checkpoint of ddn_lightning" in bad("--ckpt_path", "foreign.ckpt", capsys=capsys)
    resized = ["--ckpt_path", str(checkpoint), "--model.buffer_size", "7"]
    assert "buffer_size is 7, but the checkpoint's memory has 100 slots" in bad(*resized, capsys=capsys)


def test_damaged_and_dangerous_checkpoints_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine") == 0
    checkpoint = Path("runs/mine/checkpoints/last.ckpt")
    capsys.readouterr()
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    Path("flipped.ckpt").write_bytes(content)
    assert "flipped.ckpt is damaged, or is no checkpoint" in bad("--ckpt_path", "flipped.ckpt", capsys=capsys)

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, ("evil.txt", "w")

    torch.save({**torch.load(checkpoint, weights_only=True), "evil": Evil()}, "evil.ckpt")
    assert "evil.ckpt is damaged, or is no checkpoint" in bad("--ckpt_path", "evil.ckpt", capsys=capsys)
    assert not Path("evil.txt").exists()

    incomplete = torch.load(checkpoint, weights_only=True)
    del incomplete["state_dict"]["head.weight"]
    torch.save(incomplete, "incomplete.ckpt")
    message = bad("--ckpt_path", "incomplete.ckpt", capsys=capsys)
    assert "incomplete.ckpt: the checkpoint does not fit" in message
    assert "missing: head.weight" in message


def test_a_checkpoint_of_another_network_is_refused_and_the_run_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine", *STOPPED) == 0
    before = {path: path.read_bytes() for path in Path("runs/mine").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert fit("--name", "mine", "--ckpt_path", "last", "--model.backbone.width", "3") == 2
    message = capsys.readouterr().err
    assert "last.ckpt: the checkpoint does not fit: another network or distiller, or damaged" in message
    assert "must be of shape (3, 1, 3, 3), got float32 of shape (16, 1, 3, 3)" in message
    assert {path: path.read_bytes() for path in Path("runs/mine").rglob("*") if path.is_file()} == before


def test_an_infinite_time_between_checkpoints_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = bad("--name", "mine", "--save_every_n_minutes", "inf", capsys=capsys)
    assert "save_every_n_minutes must be finite, got inf" in message


def test_last_needs_a_checkpoint_and_auto_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    message = "ckpt_path is last, but there is no checkpoint in runs/{}/checkpoints"
    assert message.format("mine") in bad("--name", "mine", "--ckpt_path", "last", capsys=capsys)
    assert message.format("er-digits-seed0") in bad("--ckpt_path", "last", capsys=capsys)
    smoothed = ("--model.distiller", "LabelSmoothing", "--ckpt_path", "last")
    assert message.format("er-label_smoothing-digits-seed0") in bad(*smoothed, capsys=capsys)
    for last in (["auto"], ["last", "--seed_everything", "true"]):
        assert f"ckpt_path {last[0]} needs --name" in bad("--ckpt_path", *last, capsys=capsys)
    for _ in range(2):  # starts, then goes on
        assert fit("--name", "mine", "--ckpt_path", "auto") == 0
    assert "note: this run was finished already, nothing was left to train" in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == ["mine"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_auto_replaces_only_runs_killed_before_their_first_checkpoint() -> None:
    auto = ["--name", "mine", "--ckpt_path", "auto"]
    folder = Path("runs/mine")
    if (child := os.fork()) == 0:
        RunRecord.on_train_batch_start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        os._exit(fit(*auto, "--model.lr", "0.001"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "metrics.csv").write_text("epoch,step,other\n0,1,2\n")  # a killed run may have logged anything
    halves = ["checkpoints/.last.ckpt.partial", ".config.yaml.partial", ".metrics.csv.partial"]
    for half in halves:
        (folder / half).write_text("half")
    for kept in ("notes.txt", "metrics.csv.bak", "checkpoints/step3.ckpt", "results.json", "observations.npz"):
        (folder / kept).write_text("mine")
        before = contents(folder)
        assert fit(*auto) == 2
        assert contents(folder) == before
        (folder / kept).unlink()
    assert fit(*auto) == 0
    assert "other" not in (folder / "metrics.csv").read_text()
    assert "lr: 0.001" not in (folder / "config.yaml").read_text()
    assert not any((folder / half).exists() for half in halves)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore:(?s)Using ModelCheckpoint with manual optimization")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_run_killed_before_its_first_checkpoint_goes_on_from_one_of_a_model_checkpoint() -> None:
    saving = ["--trainer.callbacks", "ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "3"]
    saving += ["--trainer.callbacks.save_top_k", "-1", "--trainer.callbacks.save_on_train_epoch_end", "false"]
    auto = ["--name", "mine", "--ckpt_path", "auto", *saving]
    assert fit(*auto) == 0
    folder = Path("runs/mine/checkpoints")
    expected = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    (folder / "last.ckpt").unlink()
    kept = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    assert len(kept) > 2
    torch.save({"state_dict": {}}, kept[1])  # of weights only
    for later in kept[2:]:
        later.write_bytes(later.read_bytes()[:1000])  # cut off
    assert fit(*auto) == 0
    assert difference(expected, torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_killed_in_any_write_before_its_first_checkpoint_starts_over() -> None:
    def killed_in(number: int) -> int:
        """Exit code of a run that is killed while it forces its n-th file to disk."""
        child = os.fork()
        if child == 0:
            writes = iter(range(1, number))
            os.fsync = lambda _: next(writes, None) or os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            os._exit(fit("--name", "mine", "--ckpt_path", "auto"))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for number in (1, 2):  # config.yaml, metrics.csv
        assert killed_in(number) == -signal.SIGKILL
        assert list(Path("runs/mine").glob(".*.partial")), number
        assert not Path("runs/mine/checkpoints/last.ckpt").exists()
    assert fit("--name", "mine", "--ckpt_path", "auto") == 0


def test_a_run_that_diverged_before_its_first_checkpoint_starts_over() -> None:
    auto = ["--name", "mine", "--ckpt_path", "auto"]
    assert fit(*auto, "--model.lr", "1e10") == 3
    assert json.loads(Path("runs/mine/results.json").read_text())["status"] == "diverged"
    assert not Path("runs/mine/checkpoints/last.ckpt").exists()
    assert fit(*auto) == 0
    assert json.loads(Path("runs/mine/results.json").read_text())["status"] == "complete"


def test_a_run_without_evaluations_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine", "--trainer.limit_val_batches", "0") == 0
    assert "nothing was measured: trainer.limit_val_batches is 0" in capsys.readouterr().out


def test_auto_starts_in_an_empty_folder_that_is_a_link() -> None:
    Path("elsewhere").mkdir()
    Path("runs").mkdir()
    Path("runs/mine").symlink_to("../elsewhere")
    assert fit("--name", "mine", "--ckpt_path", "auto") == 0
    assert Path("elsewhere/results.json").exists()


def test_a_run_is_trained_by_one_process_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine", *STOPPED) == 0
    folder = RunFolder(Path("runs/mine")).locked()
    assert "runs/mine is in use" in bad("--name", "mine", "--ckpt_path", "last", capsys=capsys)
    folder.unlock()
    assert fit("--name", "mine", "--ckpt_path", "last") == 0


def test_curves_continue_after_a_resume_without_a_logger() -> None:
    assert fit("--name", "whole") == 0
    assert fit("--name", "mine", *STOPPED) == 0
    unlogged = ["--trainer.logger=false", "--trainer.max_steps=10", "--save_every_n_minutes=0"]
    assert fit("--name", "mine", "--ckpt_path", "last", *unlogged) == 0
    assert fit("--name", "mine", "--ckpt_path", "last") == 0
    texts = (Path(f"runs/{name}/metrics.csv").read_text() for name in ("whole", "mine"))
    whole, mine = (list(csv.DictReader(text.splitlines())) for text in texts)
    assert mine == [row for row in whole if not 5 <= int(row["step"]) < 10]


def test_invalid_run_names_and_folders_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").mkdir()
    Path("runs/file").write_text("")
    for name in ("file/below", "x" * 300):
        assert f"name must give a folder that can be created, got runs/{name}" in bad("--name", name, capsys=capsys)
    assert "runs/file must be a folder, but it is a file" in bad("--name", "file", capsys=capsys)
    assert "save_every_n_minutes" in bad("--name", "mine", "--save_every_n_minutes=-1", capsys=capsys)
    assert fit("--name", "[a] b/c", *STOPPED) == fit("--name", "[a] b/c", "--ckpt_path", "last") == 0


def test_evaluating_a_checkpoint_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--name", "mine") == 0
    config = ["-c", "runs/mine/config.yaml"]
    for options in (
        ["--ckpt_path", "last", "--model.backbone.width", "3"],
        ["--ckpt_path", "best"],
        ["--ckpt_path", "auto", "--name", "other"],
    ):
        capsys.readouterr()
        assert main(["test", *config, *options]) == 2
        assert "Traceback" not in capsys.readouterr().err


STOPPER = """
import os, signal
from lightning.pytorch import Callback

class Stopper(Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_ranks_stop_and_resume_together(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("stopper.py").write_text(STOPPER)
    forked = ["--trainer.strategy=ddp_fork", "--trainer.devices=2"]
    assert fit("--name", "whole") == 0
    assert fit("--name", "mine", *forked, "--trainer.callbacks+=stopper.Stopper") == 128 + signal.SIGTERM
    assert "--name mine --ckpt_path last" in capsys.readouterr().err
    assert fit("--name", "mine", "--ckpt_path", "last", *forked) == 0
    whole, mine = (json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("whole", "mine"))
    assert whole["accuracy_matrix"] == mine["accuracy_matrix"]


def test_a_full_disk_is_reported() -> None:
    child = os.fork()
    if child == 0:  # the limit would hold for the log of the tests as well
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with open("printed.txt", "w") as file, contextlib.redirect_stderr(file):
            code = fit("--name", "mine")
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    message = Path("printed.txt").read_text()
    assert "error: a checkpoint could not be written to runs/mine/checkpoints/last.ckpt, there is none yet" in message
    assert "Traceback" not in message


def make_images(classes: str) -> None:
    for split in ("train", "test"):
        for name in classes:
            folder = Path("images") / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(2):
                Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(folder / f"{number}.png")


def test_a_checkpoint_for_other_classes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    make_images("ab")
    folder = ["--data=SplitImageFolder", "--data.root=images", "--data.batch_size=2", "--model.backbone.in_channels=3"]
    assert fit("--name", "two", *folder, "--data.num_tasks", "2") == 0
    (checkpoint,) = Path("runs/two/checkpoints").glob("*.ckpt")
    make_images("c")
    capsys.readouterr()
    assert fit(*folder, "--data.num_tasks", "3", "--ckpt_path", str(checkpoint)) == 2
    assert "expected a checkpoint for 3 classes, got one for 2" in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == ["two"]


@pytest.mark.slow
def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    for command in (["ddn"], [sys.executable, "-m", "ddn_lightning"]):
        path = str(Path(sys.executable).parent / command[0]) if command == ["ddn"] else command[0]
        run = subprocess.run([path, *command[1:], "--help"], capture_output=True, text=True, check=True)
        assert "fit" in run.stdout
