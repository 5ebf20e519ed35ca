"""Commands on a trained run import the modules that the user names, and no other."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from ddn_lightning.cli import ddn, main
from ddn_lightning.cli.commands import COMMANDS, TRAINER_COMMANDS
from ddn_lightning.cli.imports import check_class_paths

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SHORT = ["--trainer.limit_train_batches=2", "--data.epochs_per_task=1", "--trainer.enable_progress_bar=false"]
SHORT += ["--trainer.log_every_n_steps=1"]
NET = """
from pathlib import Path
from ddn_lightning import SmallNet

Path("executed.txt").touch()


class Net(SmallNet):
    pass
"""


@pytest.fixture(autouse=True)
def _not_imported() -> Iterator[None]:
    had_current_folder = "" in sys.path
    yield
    assert ("" in sys.path) is had_current_folder
    sys.modules.pop("own_net", None)


@pytest.fixture
def run() -> str:
    """A run whose backbone is of a module in the current folder, which is no longer imported."""
    Path("own_net.py").write_text(NET)
    assert main(["fit", "-c", str(QUICKSTART), "--name", "mine", *SHORT, "--model.backbone", "own_net.Net"]) == 0
    del sys.modules["own_net"]
    Path("executed.txt").unlink()
    Image.new("L", (8, 8)).save("image.png")
    return "runs/mine"


def test_a_class_of_the_current_folder_is_imported_only_if_it_is_named(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path("photos") / "0").mkdir(parents=True)
    shutil.copy("image.png", "photos/0")
    config = ["-c", f"{run}/config.yaml", "--ckpt_path", f"{run}/checkpoints/last.ckpt"]
    commands = {
        "predict": ["predict", run, "image.png"],
        "export": ["export", run, "-o", "model.pt2"],
        "test on a folder": ["test", run, "photos"],
        "test": ["test", run],
        "test of a file": ["test", f"--config={config[1]}", *config[2:]],
        "validate": ["validate", *config],
        "test of a kept checkpoint": ["test", f"{run}/kept/best.ckpt"],
    }
    Path(run, "kept").mkdir()
    shutil.copy(config[-1], f"{run}/kept/best.ckpt")
    for name, words in commands.items():
        capsys.readouterr()
        assert main(words) == 2, name
        (line,) = capsys.readouterr().err.splitlines()
        assert "own_net.Net, which is not imported: " in line
        assert "--import " in line
        assert not Path("executed.txt").exists(), name
    for name in ("predict", "test", "validate"):
        assert main([*commands[name], "--import", "own_net"]) == 0, name
        assert Path("executed.txt").exists()
        Path("executed.txt").unlink()
        del sys.modules["own_net"]


def test_the_test_of_a_run_writes_nothing_that_its_configuration_says(run: str) -> None:
    settings = yaml.safe_load(Path(run, "config.yaml").read_text())
    profiler = {"class_path": "lightning.pytorch.profilers.SimpleProfiler"}
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "elsewhere"}}
    settings["trainer"] |= {
        "logger": logger,
        "profiler": profiler | {"init_args": {"dirpath": "elsewhere", "filename": "profile"}},
        "callbacks": {"class_path": "lightning.pytorch.callbacks.DeviceStatsMonitor"},  # which needs a logger
        "default_root_dir": "elsewhere",
    }
    Path(run, "config.yaml").write_text(yaml.safe_dump(settings))
    assert main(["test", run, "--import", "own_net"]) == 0
    assert not Path("elsewhere").exists()
    assert main(["test", run, "--import", "own_net", "--trainer.logger", str(logger)]) == 0
    assert Path("elsewhere").exists()  # as the user says


@pytest.mark.parametrize("name", [*TRAINER_COMMANDS, *COMMANDS])
def test_the_current_folder_is_searched_only_by_commands_for_the_users_own_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [folder for folder in sys.path if folder])
    with ddn._imports_of([name]):
        assert ("" in sys.path) == (name in ("fit", "reproduce", "tune"))


@pytest.mark.parametrize("name", ["nowhere", "", "..own_net"])
def test_a_module_that_is_not_there_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "runs/mine", "image.png", f"--import={name}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: import must be the name of a module, got {name}: ")


WRITTEN: dict[str, Any] = {
    "class path": {"model": {"class_path": "own_net.Net"}},
    "short form": {"model": {"init_args": {"backbone": "antigravity.Net"}}},
    "list": {"trainer": {"callbacks": [{"class_path": "unittest.__main__.X"}]}},
    "text": {"model": "{class_path: own_net.Net}"},
    "dotted key": {"model.class_path": "own_net.Net"},
    "other file": {"model": "other.yaml"},
}


@pytest.mark.parametrize("name", WRITTEN)
def test_no_form_of_a_class_path_in_a_runs_configuration_is_imported(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_net.py").write_text(NET)
    Path("runs/mine/checkpoints").mkdir(parents=True)
    torch.save({}, "runs/mine/checkpoints/last.ckpt")
    Path("runs/mine/config.yaml").write_text(yaml.safe_dump(WRITTEN[name]))
    Path("runs/mine/other.yaml").write_text("class_path: own_net.Net")
    monkeypatch.syspath_prepend(Path().absolute())
    assert main(["test", "runs/mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: runs/mine/config.yaml ")
    assert not Path("executed.txt").exists()
    assert "antigravity" not in sys.modules


def test_the_configuration_of_any_run_of_this_package_passes(recorded_runs: Path) -> None:
    for file in recorded_runs.glob("*/config.yaml"):
        check_class_paths(file)
