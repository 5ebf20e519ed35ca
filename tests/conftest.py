"""A Trainer that says nothing, and one seed for all."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from tiny import TinySequence

from ddn_lightning import ReplayMethod, TaskSequence

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
torch.set_num_threads(1)  # the networks are so small that threads only get in each other's way


@pytest.fixture(autouse=True)
def _same_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts from one seed, in an empty folder, and leaves the environment as it was."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    seed_everything(0, verbose=False)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    def make(**kwargs: Any) -> Trainer:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": -1, "num_sanity_val_steps": 0}
        return Trainer(**{**quiet, **kwargs})

    return make


@pytest.fixture
def fit(make_trainer: Callable[..., Trainer]) -> Callable[..., ReplayMethod]:
    """Train a method on a sequence from seed 0 and return it."""

    def run(
        make_method: Callable[[], ReplayMethod],
        sequence: TaskSequence | None = None,
        *,
        ckpt_path: Path | None = None,
        seed: int = 0,
        **trainer_arguments: Any,
    ) -> ReplayMethod:
        seed_everything(seed, verbose=False)
        method = make_method()
        make_trainer(**trainer_arguments).fit(method, sequence or TinySequence(batch_size=6), ckpt_path=ckpt_path)
        return method

    return run
