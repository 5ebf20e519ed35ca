"""What docs/streams.md says is done here, from its own text."""

import re
import shlex
from pathlib import Path

import pytest
from documents import ROOT, blocks, commands

import ddn_lightning
from ddn_lightning import ER
from ddn_lightning.cli import main
from ddn_lightning.cli.parser import class_names
from ddn_lightning.data.streams.stream import Stream

TEXT = (ROOT / "docs" / "streams.md").read_text()
BLOCKS = [commands(f"```bash\n{block}```") for block in blocks(TEXT, "bash")]
COMMANDS = [command for block in BLOCKS for command in block if "--grow" not in command]
(GROWING,) = [block for block in BLOCKS if any("--grow" in command for command in block)]


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as exit_info:
        main([*shlex.split(command)[1:], "--print_config"])
    assert exit_info.value.code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_train(command: str) -> None:
    Path("configs").symlink_to(ROOT / "configs")
    assert main(shlex.split(command)[1:]) == 0


def test_its_run_grows_command_by_command() -> None:
    Path("configs").symlink_to(ROOT / "configs")
    short = [f"--trainer.{name}=1" for name in ("limit_train_batches", "limit_val_batches", "log_every_n_steps")]
    for command in GROWING:
        assert main([*shlex.split(command)[1:], *short]) == 0
    assert len(ddn_lightning.load("runs/mine-grown-again").accuracy_matrix) == 6


def test_its_python_runs_and_draws_the_picture() -> None:
    names: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(compile(block, "docs/streams.md", "exec"), names)
    grown = names["method"]
    assert isinstance(grown, ER)
    assert grown.tasks_finished == 5
    assert isinstance(names["Weekdays"], type)
    assert issubclass(names["Weekdays"], Stream)
    assert Path("streams.svg").read_text().startswith("<?xml")


def test_it_lists_every_stream_with_its_file() -> None:
    assert sorted(re.findall(r"^\| `\w+` \| `(\w+)\(", TEXT, re.M)) == class_names("stream")
    files = sorted(path.stem for path in (ROOT / "configs" / "stream").glob("*.yaml"))
    assert sorted(re.findall(r"^\| `(\w+)` \| `\w+\(", TEXT, re.M)) == files
