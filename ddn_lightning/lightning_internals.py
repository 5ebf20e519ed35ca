"""All that is used of Lightning beyond its public interface, each name in one place; a test looks each up.

It is pinned to 2.6 for this. ``LightningCLI._parse_ckpt_path`` is overridden in :mod:`ddn_lightning.cli.fit_command`,
and two methods of ``ExperimentWriter`` in :mod:`ddn_lightning.runs.curve_logger`.
"""

from collections.abc import Callable
from traceback import walk_stack, walk_tb
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

RESTORING = ("_restore_modules_and_callbacks", "restore_training_state")  # of the checkpoint connector


def batches_logged(trainer: Trainer) -> int:
    """Batches whose values were handed to the loggers: their step. Several optimizer steps may be taken on each."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def is_logged(trainer: Trainer) -> bool:
    """Whether the step just taken is one whose values are logged."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning does not declare it
    return interval > 0 and (batches_logged(trainer) + 1) % interval == 0


def values_to_log(trainer: Trainer) -> dict[str, float]:
    """The values of the step just taken, as the loggers will get them."""
    return {name: float(value) for name, value in trainer._logger_connector.metrics["log"].items()}


def drop_old_values(trainer: Trainer) -> None:
    """Keep Lightning from logging an earlier step's values anew, as it does in the step that stops training."""
    if trainer.should_stop and not is_logged(trainer):
        trainer.fit_loop.epoch_loop._results.reset(fx="training_step")


def dump_checkpoint(trainer: Trainer) -> dict[str, Any]:
    """The checkpoint that ``trainer.save_checkpoint`` would write."""
    return trainer._checkpoint_connector.dump_checkpoint()


def is_restoring(error: BaseException) -> bool:
    """Whether an error was raised while a checkpoint was being restored."""
    return any(frame.f_code.co_name in RESTORING for frame, _ in walk_tb(error.__traceback__))


def is_resuming(trainer: Trainer) -> bool:
    """Whether the fit under way was given a checkpoint. Lightning 2.6 keeps that to itself until ``setup`` is over."""
    for frame, _ in walk_stack(None):
        if frame.f_code is Trainer._run.__code__ and frame.f_locals["self"] is trainer:
            return frame.f_locals["ckpt_path"] is not None
    return False


def has_trainer(module: LightningModule) -> bool:
    """Whether a module is attached to a Trainer, without the error that asking for it raises otherwise."""
    return module._trainer is not None


def forget_sigterm(trainer: Trainer) -> None:
    """Let Lightning not stop by the SIGTERM that it has received."""
    trainer._signal_connector.received_sigterm = False


def syncs_batch_norm(trainer: Trainer) -> bool:
    """Whether the Trainer will synchronise BatchNorm, by ``sync_batchnorm``."""
    return getattr(trainer.strategy, "_layer_sync", None) is not None


def kill_processes_of(trainer: Trainer) -> Callable[[int], None] | None:
    """What sends a signal to the processes that do the training, if they are others than this one."""
    launcher = trainer.strategy.launcher
    return launcher.kill if isinstance(launcher, _MultiProcessingLauncher) else None
