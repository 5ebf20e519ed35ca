"""Every private name of Lightning that the package uses, each in one function and one test.

They are why Lightning is pinned to 2.6. Two overrides are elsewhere: ``LightningCLI._parse_ckpt_path`` in
:mod:`ddn_lightning.cli.fit_command`, and two methods of ``ExperimentWriter`` in
:mod:`ddn_lightning.runs.curve_logger`.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from traceback import walk_stack, walk_tb
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

RESTORING = ("_restore_modules_and_callbacks", "restore_training_state")  # methods of the checkpoint connector


def batches_logged(trainer: Trainer) -> int:
    """Number of batches trained on, the loggers' step; a batch may take several optimizer steps."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def is_logged(trainer: Trainer) -> bool:
    """Whether Lightning logs the values of the step just taken."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning does not declare it
    return interval > 0 and (batches_logged(trainer) + 1) % interval == 0


def batches_fetched(trainer: Trainer) -> int:
    """Number of batches fetched in the current epoch."""
    fetcher = trainer.fit_loop._data_fetcher
    return 0 if fetcher is None else fetcher.fetched


def values_to_log(trainer: Trainer) -> dict[str, float]:
    """The values of the step just taken, as the loggers receive them."""
    return {name: float(value) for name, value in trainer._logger_connector.metrics["log"].items()}


def duration_of(timer: Timer) -> float | None:
    """The seconds after which a timer stops training, or ``None`` if it only measures."""
    return timer._duration


def drop_old_values(trainer: Trainer) -> None:
    """Keep Lightning from logging an earlier step's values again in the step that stops training."""
    if trainer.should_stop and not is_logged(trainer):
        trainer.fit_loop.epoch_loop._results.reset(fx="training_step")


def restore_position(trainer: Trainer) -> None:
    """Restore the position in the epoch, which Lightning forgets if the loaders were made before.

    A ``configure_optimizers`` makes them when it asks for ``trainer.estimated_stepping_batches``.
    """
    trainer.fit_loop._load_combined_loader_states()


def dump_checkpoint(trainer: Trainer) -> dict[str, Any]:
    """The checkpoint that ``trainer.save_checkpoint`` would write."""
    return trainer._checkpoint_connector.dump_checkpoint()


def is_restoring(error: BaseException) -> bool:
    """Whether an error was raised while Lightning restored a checkpoint."""
    return any(frame.f_code.co_name in RESTORING for frame, _ in walk_tb(error.__traceback__))


def is_resuming(trainer: Trainer) -> bool:
    """Whether the running fit was given a checkpoint. Lightning 2.6 stores the path only after ``setup``."""
    for frame, _ in walk_stack(None):
        if frame.f_code is Trainer._run.__code__ and frame.f_locals["self"] is trainer:
            return frame.f_locals["ckpt_path"] is not None
    return False


def resume_from_file(trainer: Trainer, path: str | Path) -> None:
    """Let the running fit restore a checkpoint as if it had been given its path; called in ``setup``."""
    trainer._checkpoint_connector.resume_start(path)


def has_trainer(module: LightningModule) -> bool:
    """Whether a module is attached to a Trainer; ``module.trainer`` raises if it is not."""
    return module._trainer is not None


def forget_sigterm(trainer: Trainer) -> None:
    """Keep Lightning from stopping because of a SIGTERM that it has received."""
    trainer._signal_connector.received_sigterm = False


def syncs_batch_norm(trainer: Trainer) -> bool:
    """Whether the Trainer was given ``sync_batchnorm``."""
    return getattr(trainer.strategy, "_layer_sync", None) is not None


def time_interval(callback: ModelCheckpoint) -> timedelta | None:
    """The time after which a ModelCheckpoint saves, if it was given one."""
    return callback._train_time_interval


def kill_processes_of(trainer: Trainer) -> Callable[[int], None] | None:
    """A function that sends a signal to the training processes; ``None`` if this process trains."""
    launcher = trainer.strategy.launcher
    return launcher.kill if isinstance(launcher, _MultiProcessingLauncher) else None
