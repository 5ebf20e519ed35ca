"""A Trainer that says nothing, and one seed for all."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from tiny import TinySequence, quiet_trainer
from usable_instructions import avoid_broken_amx

from ddn_lightning import ReplayMethod, TaskSequence
from ddn_lightning.cli import main
from ddn_lightning.cli.run_figures import RunFigures
from ddn_lightning.errors import note_once

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
avoid_broken_amx()
torch.set_num_threads(1)  # the networks are so small that threads only get in each other's way


@pytest.fixture(autouse=True)
def _same_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts from one seed, in an empty folder, and leaves the environment as it was."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    seed_everything(0, verbose=False)
    note_once.cache_clear()
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def imported() -> Iterator[list[str]]:
    """The names of the modules that somebody tries to import."""
    names: list[str] = []
    probe = SimpleNamespace(find_spec=lambda name, *_: names.append(name))
    sys.meta_path.insert(0, probe)  # type: ignore[arg-type]  # all that an import asks of it
    yield names
    sys.meta_path.remove(probe)  # type: ignore[arg-type]


@pytest.fixture
def drawn() -> None:
    """For a test that wants the figures of the runs it makes."""


@pytest.fixture(autouse=True)
def _drawn_only_where_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred tests run the command for its numbers; drawing would take longer than training."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(RunFigures, "_draw", lambda self, run: [])


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three short runs that nobody may change: er, ddn, which alone has figures, and stopped.

    The last has finished one of its five tasks.
    """
    folder = tmp_path_factory.mktemp("recorded") / "runs"
    short = ["--data.epochs_per_task=1", "--trainer.log_every_n_steps=5", "--trainer.enable_progress_bar=false"]
    fit = ["fit", "-c", str(QUICKSTART), *short, "--runs", str(folder)]
    assert main([*fit, "--name", "ddn", "--model.distiller=DataDistillNet", "--seed_everything=1"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFigures, "_draw", lambda self, run: [])
        assert main([*fit, "--name", "er"]) == 0
        assert main([*fit, "--name", "stopped", "--trainer.max_steps=20"]) == 0
    return folder


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    return quiet_trainer


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
