"""Draws a run's figures when it ends."""

from pathlib import Path

import numpy
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from PIL import Image

from ddn_lightning.callbacks.continual_evaluation import ContinualEvaluation
from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.errors import note
from ddn_lightning.runs.config import flat, load_yaml
from ddn_lightning.runs.observed import save_observed
from ddn_lightning.runs.recorded_run import CURVES_FILE, RecordedRun, parse_curves


class RunFigures(Callback):
    """Writes ``observations.npz`` and the figures of a run to its folder, and logs them to TensorBoard and W&B.

    Args:
        folder: The run folder, with the results of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the observations and the figures. A figure that fails does not fail the run."""
        if not trainer.is_global_zero:
            return
        run = self._run(trainer)
        if run.observed is not None:
            save_observed(run.observed, self.folder)
        try:
            paths = self._draw(run)
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            note(f"the figures could not be drawn: {error}")
            return
        self._log(trainer, paths)

    def _run(self, trainer: Trainer) -> RecordedRun:
        """The run as it is in memory; only its curves, which began before a resume, are in a file."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        record = next((one for one in callbacks if isinstance(one, RunRecord)), None)
        observed = next((one.observed for one in callbacks if isinstance(one, Observations)), None)
        evaluation = ContinualEvaluation.of(trainer)
        for logger in trainer.loggers:
            logger.save()
        curves = self.folder / CURVES_FILE
        return RecordedRun(
            name=self.folder.name,
            folder=self.folder,
            results=None if record is None else record.results,
            config={} if record is None else flat(load_yaml(record.config) or {}),
            rows=parse_curves(curves.read_bytes()) if curves.is_file() else (),
            observed=observed,
            anytime=evaluation.record if evaluation is not None and evaluation.record.evaluations else None,
        )

    def _draw(self, run: RecordedRun) -> list[Path]:
        from ddn_lightning.report.figures import run_figures  # here: importing Matplotlib is slow

        return run_figures.save_pictures(run_figures.pictures_of(run), self.folder)

    def _log(self, trainer: Trainer, paths: list[Path]) -> None:
        for logger in trainer.loggers:
            for path in paths:
                name = f"figures/{path.stem}"
                if isinstance(logger, TensorBoardLogger):
                    pixels = numpy.asarray(Image.open(path).convert("RGB"))
                    logger.experiment.add_image(name, pixels, trainer.global_step, dataformats="HWC")
                elif isinstance(logger, WandbLogger):
                    logger.log_image(name, [str(path)])
