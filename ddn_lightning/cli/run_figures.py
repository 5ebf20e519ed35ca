"""Draws a run's figures when it ends."""

import sys
from pathlib import Path

import numpy
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from PIL import Image

from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.runs.observed import save_observed
from ddn_lightning.runs.recorded_run import read_run


class RunFigures(Callback):
    """Writes ``observations.npz`` and the figures of a run into its folder, and shows them to TensorBoard and W&B.

    Args:
        folder: The run's folder, in which its results are by then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what there is. A figure that fails costs nothing but itself."""
        if not trainer.is_global_zero:
            return
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
            if isinstance(callback, Observations) and callback.observed is not None:
                save_observed(callback.observed, self.folder)
        for logger in trainer.loggers:
            logger.save()
        try:
            names = self._draw()
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            print(f"note: the figures could not be drawn: {error}", file=sys.stderr)
            return
        self._show(trainer, names)

    def _draw(self) -> list[Path]:
        from ddn_lightning.report.figures.run_figures import (  # here: only a run's end needs them
            pictures_of,
            save_pictures,
        )

        return save_pictures(pictures_of(read_run(self.folder)), self.folder)

    def _show(self, trainer: Trainer, paths: list[Path]) -> None:
        for logger in trainer.loggers:
            for path in paths:
                name = f"figures/{path.stem}"
                if isinstance(logger, TensorBoardLogger):
                    pixels = numpy.asarray(Image.open(path).convert("RGB"))
                    logger.experiment.add_image(name, pixels, trainer.global_step, dataformats="HWC")
                elif isinstance(logger, WandbLogger):
                    logger.log_image(name, [str(path)])
