"""Lets a resumed run's logged curves go on without a gap or a double point."""

from dataclasses import asdict, dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from ddn_lightning.checkpoint import checks
from ddn_lightning.lightning_internals import batches_logged, is_logged, values_to_log
from ddn_lightning.runs.curve_logger import CurveLogger

KEY = "logged_curves"


@dataclass(frozen=True)
class SavedCurves:
    """How far the curves were.

    Args:
        rows: Rows that were logged.
        step: The step to be logged next.
        pending: Its values, if it was taken already.
    """

    rows: int
    step: int
    pending: dict[str, float]


class LoggedCurves(Callback):
    """Notes in each checkpoint how far the curves of a :class:`CurveLogger` are; a resume cuts them back to that.

    Lightning hands a step's values to the loggers only after the callbacks, so a checkpoint of that step has to bring
    them along. TensorBoard cuts back by itself, if its logger is given ``purge_step``; other loggers are left alone.
    """

    def __init__(self) -> None:
        self._saved: SavedCurves | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cut back, and log what the checkpoint brought along."""
        saved, self._saved = self._saved, None
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if isinstance(logger, CurveLogger):
                curves = logger.experiment
                curves.keep(curves.rows_before(batches_logged(trainer)) if saved is None else saved.rows)
            if saved is not None and saved.pending and isinstance(logger, CurveLogger | TensorBoardLogger):
                logger.log_metrics(dict(saved.pending), saved.step)
                logger.save()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note how many rows there are, and those to come from the step that has just been taken."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, CurveLogger)]
        if loggers and trainer.is_global_zero:
            rows = loggers[0].experiment.rows
            checkpoint[KEY] = asdict(SavedCurves(rows, batches_logged(trainer), _pending(trainer)))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remember until training starts."""
        self._saved = saved_curves(checkpoint)


def saved_curves(checkpoint: dict[str, Any]) -> SavedCurves | None:
    """What a checkpoint says of the curves, if anything."""
    if KEY not in checkpoint:
        return None
    saved = checks.mapping(KEY, checkpoint[KEY], ("rows", "step", "pending"))
    pending = checks.mapping(f"{KEY}/pending", saved["pending"])
    for name, value in pending.items():
        if not isinstance(name, str) or not isinstance(value, int | float):
            checks.refuse(f"{KEY}/pending/{name}", "a number", value)
    return SavedCurves(
        checks.integer(f"{KEY}/rows", saved["rows"]), checks.integer(f"{KEY}/step", saved["step"]), pending
    )


def _pending(trainer: Trainer) -> dict[str, float]:
    """The values of a step that is not completed, as Lightning is about to log them."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    if progress.completed == progress.processed or not is_logged(trainer):
        return {}
    values = values_to_log(trainer)
    return {**values, "epoch": trainer.current_epoch} if values else {}
