"""A run's figures reach its folder and the loggers that show images. The tests of the report cover the drawing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from every_method import build
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from PIL import Image
from tiny import TinySequence
from torch import distributed

from ddn_lightning import ER, Observations
from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.cli.run_figures import RunFigures
from ddn_lightning.runs.recorded_run import RecordedRun, read_run
from ddn_lightning.runs.run_folder import RunFolder

FOLDER = Path("run")
MakeTrainer = Callable[..., Trainer]


class Silent(DummyLogger):
    """Logs nothing."""

    log_dir = "."

    def _nothing(self, *_: Any) -> None:
        pass

    log_graph = save = finalize = _nothing


class Board(Silent, TensorBoardLogger):
    """Stands in for TensorBoard, which may not be installed."""

    def __init__(self) -> None:
        self.images: dict[str, tuple[tuple[int, ...], int]] = {}

    @property
    def experiment(self) -> Any:
        return self

    def add_image(self, name: str, pixels: numpy.ndarray[Any, Any], step: int, dataformats: str) -> None:
        assert dataformats == "HWC"
        self.images[name] = (pixels.shape, step)


class Weights(Silent, WandbLogger):
    """Stands in for W&B, which may not be installed."""

    def __init__(self) -> None:
        self.images: dict[str, list[Any]] = {}

    def log_image(self, key: str, images: list[Any], step: int | None = None, **_: Any) -> None:
        self.images[key] = images


def run(make_trainer: MakeTrainer, figures: RunFigures, **arguments: Any) -> Observations:
    """Train on three tasks of four steps."""
    observations = Observations()
    trainer = make_trainer(callbacks=[RunRecord(RunFolder(FOLDER), ""), observations, figures], **arguments)
    trainer.fit(build(ER), TinySequence(batch_size=6))
    return observations


def test_loggers_that_show_images_get_every_figure(make_trainer: MakeTrainer, drawn: None) -> None:
    board, weights = Board(), Weights()
    run(make_trainer, RunFigures(FOLDER), logger=[board, weights], log_every_n_steps=1)
    paths = sorted((FOLDER / "figures").glob("*.png"))
    assert {"accuracy_matrix", "task_accuracy", "confusion"} <= {path.stem for path in paths}
    for path in paths:
        with Image.open(path) as image:
            width, height = image.size
        assert board.images[f"figures/{path.stem}"] == ((height, width, 3), 12)
        assert weights.images[f"figures/{path.stem}"] == [str(path)]
    assert len(board.images) == len(weights.images) == len(paths)


def test_the_observations_of_a_run_are_saved(make_trainer: MakeTrainer) -> None:
    observed, saved = run(make_trainer, RunFigures(FOLDER)).observed, read_run(FOLDER).observed
    assert observed is not None
    assert saved is not None
    assert saved.tensors().keys() == observed.tensors().keys()
    for name, tensor in observed.tensors().items():
        assert saved.tensors()[name].equal(tensor), name


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_only_the_first_rank_draws(make_trainer: MakeTrainer, drawn: None) -> None:
    class Recording(RunFigures):
        def _draw(self, run: RecordedRun) -> list[Path]:
            Path(f"drawn_by_rank{distributed.get_rank()}").touch()
            return []

    run(make_trainer, Recording(FOLDER), devices=2, strategy="ddp_fork")
    assert [path.name for path in Path().glob("drawn_by_*")] == ["drawn_by_rank0"]


def test_a_figure_that_fails_is_noted_and_does_not_fail_the_run(
    make_trainer: MakeTrainer, drawn: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr("ddn_lightning.report.figures.run_figures.pictures_of", fail)
    run(make_trainer, RunFigures(FOLDER))
    assert capsys.readouterr().err == "note: the figures could not be drawn: no such colour\n"
    assert (FOLDER / "results.json").is_file()
