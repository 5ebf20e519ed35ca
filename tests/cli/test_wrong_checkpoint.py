"""The command refuses a checkpoint with a wrong part in one line and changes no file."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_tree import changed

from ddn_lightning.cli import main
from ddn_lightning.cli.resume import last_checkpoint
from ddn_lightning.runs.written_files import WrittenFiles

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SHORT = ["--trainer.limit_train_batches=2", "--data.epochs_per_task=1", "--trainer.enable_progress_bar=false"]
SHORT += ["--trainer.log_every_n_steps=1"]
LAST = Path("runs/mine/checkpoints/last.ckpt")


def fit(*options: str) -> int:
    return main(["fit", "-c", str(QUICKSTART), "--name", "mine", *SHORT, *options])


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}


def refusal(checkpoint: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says, having touched nothing."""
    torch.save(checkpoint, LAST)
    WrittenFiles(LAST.parents[1]).finish()
    before = files()
    capsys.readouterr()
    assert fit("--ckpt_path", "last", "--model.lr", "0.05") == 2  # config.yaml would change
    (line,) = capsys.readouterr().err.splitlines()
    assert files() == before
    return line


def test_the_error_names_the_file_and_the_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--trainer.max_steps=4") == 0
    wrong = changed(torch.load(LAST, weights_only=True), ("state_dict", "head.bias"), torch.full((10,), torch.nan))
    line = refusal(wrong, capsys)
    assert line.startswith(f"error: {LAST}: the checkpoint's state_dict/head.bias must be finite everywhere")


def test_the_last_of_numbered_runs_is_no_other_run() -> None:
    for time, name in enumerate(("er-seed0", "er-seed0-2", "er-seed0-2-grown", "er-seed0-2b")):
        Path("runs", name, "checkpoints").mkdir(parents=True)
        Path("runs", name, "checkpoints/last.ckpt").touch()
        os.utime(Path("runs", name, "checkpoints/last.ckpt"), (time, time))
    assert last_checkpoint(Path("runs"), "er-seed0", is_default=True) == Path("runs/er-seed0-2/checkpoints/last.ckpt")
    assert last_checkpoint(Path("runs"), "er-seed0", is_default=False) == Path("runs/er-seed0/checkpoints/last.ckpt")
