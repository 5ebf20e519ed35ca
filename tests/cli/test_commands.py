"""``ddn --help``, ``ddn configs``, configurations by name, and suggestions for misspelt names."""

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI

from ddn_lightning.cli import main
from ddn_lightning.cli.commands import COMMANDS, LINES, TRAINER_COMMANDS
from ddn_lightning.shipped_configs import shipped_names

CONFIGS = Path(__file__).parents[2] / "configs"


def code_of(*arguments: str) -> Any:
    try:
        return main(list(arguments))
    except SystemExit as error:
        return error.code


def test_help_lists_every_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*TRAINER_COMMANDS, *COMMANDS} == LINES.keys()
    assert TRAINER_COMMANDS.keys() <= LightningCLI.subcommands().keys()
    assert code_of("--help") == 0
    printed = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in printed.splitlines() if line.startswith("  "))
    assert lines == LINES
    assert max(map(len, printed.splitlines())) <= 110


@pytest.mark.parametrize(
    "arguments",
    [["fit", "--print_config=--"], ["fit", "-c", "quickstart", "--data.stream=--"], ["report", "runs", "-o=--"]],
)
def test_two_dashes_are_no_value(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*arguments) == 2
    option = arguments[-1].strip("-=")
    assert capsys.readouterr().err == f"error: {option} must have a value, got --\n"


class Interrupted(MetaPathFinder):
    """Ctrl-C while the command is imported."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "ddn_lightning.cli.ddn":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_imported_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ddn_lightning.cli.ddn")
    monkeypatch.setattr("sys.meta_path", [Interrupted(), *sys.meta_path])
    assert main(["--version"]) == 130


def test_no_command_prints_the_same_help_and_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("--help") == 0
    expected = capsys.readouterr().out
    assert code_of() == 2
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("command", LINES)
def test_every_command_has_help_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(command, "--help") == 0
    assert f"{command} " in capsys.readouterr().out.partition("\n\n")[0]  # its usage


def test_configs_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("configs") == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == shipped_names()
    assert dict(lines)["method/finetune"] == "Fine-tuning without a memory: the lower bound."


@pytest.mark.parametrize("folder", [None, "own/files"])
def test_configs_are_copied_whole_into_a_new_folder_only(
    folder: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = ["configs", "--copy", *([folder] if folder else [])]
    copied = Path(folder or "configs")
    assert code_of(*copy) == 0
    assert f"--config {copied}/quickstart.yaml" in capsys.readouterr().out
    files = {path.relative_to(CONFIGS): path.read_bytes() for path in CONFIGS.rglob("*") if path.is_file()}
    assert {path.relative_to(copied): path.read_bytes() for path in copied.rglob("*") if path.is_file()} == files
    (copied / "quickstart.yaml").write_text("mine")
    assert code_of(*copy) == 2
    assert f"copy must be a new folder, but {copied} exists already" in capsys.readouterr().err
    assert (copied / "quickstart.yaml").read_text() == "mine"


def test_config_takes_names_and_files_together(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text("model:\n  init_args:\n    buffer_size: 7\n")
    assert code_of("fit", "--config", "quickstart", "-c", "method/derpp", "--config=own.yaml", "--print_config") == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["model"]["class_path"] == "ddn_lightning.DERPlusPlus"
    assert settings["model"]["init_args"]["buffer_size"] == 7
    assert settings["data"]["class_path"] == "ddn_lightning.SplitDigits"


def test_an_own_file_of_a_shipped_name_has_priority(capsys: pytest.CaptureFixture[str]) -> None:
    Path("quickstart").write_text("seed_everything: 77\n")
    assert code_of("fit", "-c", "quickstart", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed_everything"] == 77


def test_reproduce_needs_no_clone_and_takes_names_for_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    cell = ["digits", "--methods", "er", "--plugins", "none", "--seeds", "1"]
    extra = ["--", "-c", "statistics/both", "--trainer.limit_train_batches=1", "--data.epochs_per_task=1"]
    assert code_of("reproduce", *cell, *extra) == 0
    (config,) = Path("runs").rglob("config.yaml")
    assert yaml.safe_load(config.read_text())["forgetting"]["statistics"] == "both"
    capsys.readouterr()
    assert code_of("reproduce", *cell, "--dry-run", *extra) == 0
    assert "1 │    1 │" in capsys.readouterr().out  # one run, which is done
    assert code_of("configs", "--copy") == 0
    assert code_of("reproduce", *cell, "--dry-run") == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["repotr"], "got repotr (did you mean report?)"),
        (["fit", "-c", "quickstrat"], "got quickstrat (did you mean quickstart?)"),
        (["fit", "--model", "DERPlus"], "(did you mean DERPlusPlus?)"),
        (["fit", "--model", "ER", "--model.bufer_size=3"], "(did you mean buffer_size?)"),
        (["fit", "--model", "ER", "--model.backbone=SmallNet", "--model.backbone.widht=3"], "(did you mean width?)"),
        (["fit", "--data", "SplitDigits", "--data.stream=Blury"], "of your own (did you mean Blurry?)"),
        (["fit", "--trainer.max_epohcs=3"], "--trainer.max_epohcs=3 (did you mean --trainer.max_epochs?)"),
        (["fit", "--modle.lr=3"], "--modle.lr=3 (did you mean --model.lr?)"),
        (["fit", "-c", "misspelt.yaml"], "'modle.init_args.lr' (did you mean model.init_args.lr?)"),
        (["report", "--ouptut", "page.html"], "--ouptut (did you mean --output?) (see 'ddn report --help')"),
        (["fit", "--device", "cuda"], "unrecognized arguments: --device cuda (did you mean --trainer.devices?)"),
        (["fit", "--zzz=3"], "unrecognized arguments: --zzz=3\n"),
        (["fit", "--model", "DERPP"], "of your own (did you mean DER or XDER or DERPlusPlus?)"),
        (["fit", "--see", "3"], "unrecognized arguments: --see 3 (did you mean --seed_everything?)"),
        (
            ["fit", "--trainer.max_ep=3"],
            "unrecognized arguments: --trainer.max_ep=3 (did you mean --trainer.max_epochs?)",
        ),
        (["compare", "--base", "er", "runs"], "unrecognized arguments: --base (did you mean --baseline?)"),
    ],
)
def test_a_misspelt_or_shortened_name_is_refused_and_suggests_the_nearest_once(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("misspelt.yaml").write_text("modle: {init_args: {lr: 3}}\n")
    assert code_of(*arguments) == 2
    printed = capsys.readouterr().err
    assert expected in printed
    assert printed.count("did you mean") == expected.count("did you mean")


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    package = sys.modules["ddn_lightning"]
    assert code_of("--version") == 0
    assert capsys.readouterr().out == f"ddn_lightning {package.__version__}\n"


def test_options_of_a_command_may_come_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("all.yaml").write_text("fit: {name: mine}\ntest: {name: other}\n")
    for command, name in (("fit", "mine"), ("test", "other")):
        assert code_of("--config", "all.yaml", command, "-c", str(CONFIGS / "quickstart.yaml"), "--print_config") == 0
        assert f"\nname: {name}\n" in capsys.readouterr().out
