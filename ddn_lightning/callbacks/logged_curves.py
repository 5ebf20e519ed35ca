"""Continues the logged curves of a resumed run without gaps or duplicate points."""

from dataclasses import asdict, dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from ddn_lightning.lightning_internals import batches_logged, is_logged, values_to_log
from ddn_lightning.runs.curve_logger import CurveLogger

KEY = "logged_curves"


@dataclass(frozen=True)
class SavedCurves:
    """The position of the curves at a checkpoint."""

    rows: int  # rows logged
    step: int  # the next step to log
    pending: dict[str, float]  # its values, if the step was taken already


class LoggedCurves(Callback):
    """Saves the position of a :class:`CurveLogger` in each checkpoint; a resume truncates the curves to it.

    Lightning passes a step's values to the loggers after the callbacks, so a checkpoint of that step contains them as
    pending. TensorBoard truncates by itself, given ``purge_step``; other loggers are not touched.
    """

    def __init__(self) -> None:
        self._saved: SavedCurves | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Truncate the curves, and log the pending values of the checkpoint."""
        saved, self._saved = self._saved, None
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, CurveLogger):
                curves = logger.experiment
                curves.keep(curves.rows_before(batches_logged(trainer)) if saved is None else saved.rows)
            if saved is not None and saved.pending and isinstance(logger, CurveLogger | TensorBoardLogger):
                logger.log_metrics(dict(saved.pending), saved.step)
                logger.save()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the number of rows, and the values of the step just taken."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, CurveLogger)]
        if loggers and trainer.is_global_zero:
            loggers[0].save()  # the rows that are counted
            rows = loggers[0].experiment.rows
            checkpoint[KEY] = asdict(SavedCurves(rows, batches_logged(trainer), _pending(trainer)))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the position until training starts."""
        self._saved = saved_curves(checkpoint)


def saved_curves(checkpoint: dict[str, Any]) -> SavedCurves | None:
    """The position of the curves in a checkpoint; ``None`` if it has none."""
    if KEY not in checkpoint:
        return None
    return SavedCurves(**checkpoint[KEY])


def _pending(trainer: Trainer) -> dict[str, float]:
    """The values that Lightning is about to log, if the step is not completed."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    if progress.completed == progress.processed or not is_logged(trainer):
        return {}
    values = values_to_log(trainer)
    return {**values, "epoch": trainer.current_epoch} if values else {}
