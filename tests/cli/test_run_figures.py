"""Where a run's figures go. That they are drawn is seen by the tests of the report."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from ddn_lightning import Observations
from ddn_lightning.cli.run_figures import RunFigures
from ddn_lightning.runs.observed import load_observed


class Board(TensorBoardLogger):
    """Stands in for TensorBoard, which may not be installed."""

    def __init__(self) -> None:
        self.images: dict[str, tuple[tuple[int, ...], int]] = {}

    @property
    def experiment(self) -> Any:
        return self

    def add_image(self, name: str, pixels: numpy.ndarray[Any, Any], step: int, dataformats: str) -> None:
        assert dataformats == "HWC"
        self.images[name] = (pixels.shape, step)

    def save(self) -> None:
        pass


class Weights(WandbLogger):
    """Stands in for W&B, which may not be installed."""

    def __init__(self) -> None:
        self.images: dict[str, list[Any]] = {}

    def log_image(self, key: str, images: list[Any], step: int | None = None, **_: Any) -> None:
        self.images[key] = images

    def save(self) -> None:
        pass


def end(folder: Path, *callbacks: Any, loggers: Any = (), is_global_zero: bool = True) -> None:
    trainer: Any = SimpleNamespace(
        is_global_zero=is_global_zero, callbacks=[*callbacks], loggers=loggers, global_step=7
    )
    RunFigures(folder).on_fit_end(trainer, None)  # type: ignore[arg-type]


def test_loggers_that_show_images_get_every_figure(recorded_runs: Path, drawn: None) -> None:
    shutil.copytree(recorded_runs / "stopped", "run", ignore=shutil.ignore_patterns("figures", "*.npz"))
    board, weights = Board(), Weights()
    end(Path("run"), loggers=[board, weights])
    assert board.images.keys() == weights.images.keys() == {"figures/task_accuracy", "figures/accuracy_matrix"}
    assert board.images["figures/task_accuracy"] == ((396, 704, 3), 7)
    assert weights.images["figures/task_accuracy"] == ["run/figures/task_accuracy.png"]


def test_what_was_observed_is_written_by_the_first_rank_only(recorded_runs: Path) -> None:
    observations = Observations()
    observations.observed = load_observed(recorded_runs / "ddn")
    for is_global_zero in (False, True):
        end(Path("run"), observations, is_global_zero=is_global_zero)
        assert Path("run/observations.npz").exists() == is_global_zero


def test_a_figure_that_fails_is_told_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: RunFigures) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr(RunFigures, "_draw", fail)
    end(Path("run"))
    assert capsys.readouterr().err == "note: the figures could not be drawn: no such colour\n"
