"""Draws a run's figures when it ends."""

from pathlib import Path

import numpy
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from PIL import Image

from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.notes import note
from ddn_lightning.runs.observed import save_observed
from ddn_lightning.runs.recorded_run import read_run


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
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
            if isinstance(callback, Observations) and callback.observed is not None:
                save_observed(callback.observed, self.folder)
        for logger in trainer.loggers:
            logger.save()
        try:
            paths = self._draw()
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            note(f"the figures could not be drawn: {error}")
            return
        self._log(trainer, paths)

    def _draw(self) -> list[Path]:
        from ddn_lightning.report.figures import run_figures  # here: importing Matplotlib is slow

        return run_figures.save_pictures(run_figures.pictures_of(read_run(self.folder)), self.folder)

    def _log(self, trainer: Trainer, paths: list[Path]) -> None:
        for logger in trainer.loggers:
            for path in paths:
                name = f"figures/{path.stem}"
                if isinstance(logger, TensorBoardLogger):
                    pixels = numpy.asarray(Image.open(path).convert("RGB"))
                    logger.experiment.add_image(name, pixels, trainer.global_step, dataformats="HWC")
                elif isinstance(logger, WandbLogger):
                    logger.log_image(name, [str(path)])
