"""Checks of Trainer options and checkpoints that would silently be ignored or give wrong results."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.loops import check_clock, check_progress
from ddn_lightning.checkpoint.weights import check_optimizers
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError

NO_ACCUMULATION = "manual optimization steps on each batch: raise batch_size instead"
AVERAGES = "CLSER with evaluate=stable evaluates a moving average of the network"
REFUSED: dict[type[Callback], str] = {
    BatchSizeFinder: "it would try batch sizes on the first task only: choose batch_size",
    EarlyStopping: "it would end the whole sequence before the later tasks: choose epochs_per_task",
    GradientAccumulationScheduler: NO_ACCUMULATION,
    LearningRateFinder: "it would train on the first task and keep the weights: compare runs with different lr",
    ModelPruning: "it prunes after the last evaluation: prune method.network after training",
    StochasticWeightAveraging: f"it replaces the weights after the last evaluation; {AVERAGES}",
    WeightAveraging: f"it would also average counters such as the classes seen; {AVERAGES}",
}
ALWAYS_COMPARABLE = (None, "epoch", "step")  # what a ModelCheckpoint may monitor


def check_trainer(trainer: Trainer) -> None:
    """Refuse options that cannot work with a task sequence, before anything has changed.

    Args:
        trainer: The Trainer, with the user's callbacks and the data module.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
        for kind, reason in REFUSED.items():
            if isinstance(callback, kind):
                raise ConfigurationError(f"callbacks must not contain {type(callback).__name__}: {reason}")
        if isinstance(callback, ModelCheckpoint) and callback.monitor not in ALWAYS_COMPARABLE:
            raise ConfigurationError(
                f"callbacks must not contain ModelCheckpoint(monitor={callback.monitor!r}): it would compare models "
                "after different tasks and may keep that of task 1 as the best. Leave out monitor to keep the last "
                "model, or use monitor='epoch', mode='max' and save_top_k to keep the last ones"
            )
    if trainer.precision == "16-mixed":
        raise ConfigurationError(
            "precision must not be 16-mixed, which scales the loss: manual gradients are not unscaled. Use bf16-mixed"
        )
    if trainer.gradient_clip_val:
        raise ConfigurationError(
            f"gradient_clip_val must be left out, got {trainer.gradient_clip_val}: Lightning does not clip in manual "
            f"optimization. Give the method gradient_clip_val={trainer.gradient_clip_val} instead "
            f"(--model.gradient_clip_val {trainer.gradient_clip_val})"
        )
    if trainer.accumulate_grad_batches != 1:
        raise ConfigurationError(
            f"accumulate_grad_batches must be 1, got {trainer.accumulate_grad_batches}: {NO_ACCUMULATION}"
        )
    every = getattr(getattr(trainer, "datamodule", None), "evaluate_every_n_epochs", None)
    if every is not None and trainer.check_val_every_n_epoch not in (None, 1, every):
        raise ConfigurationError(
            f"check_val_every_n_epoch must be left out, got {trainer.check_val_every_n_epoch}: accuracy is measured at "
            "the end of each task, and within tasks with evaluate_every_n_epochs of the data"
        )


def check_optimizer(trainer: Trainer, ignored_milestones: Sequence[int]) -> None:
    """Refuse an optimizer that needs a closure or has no parameters, and milestones that would be ignored.

    Args:
        trainer: The Trainer, with the optimizers.
        ignored_milestones: ``lr_milestones``, if the user has given an optimizer or a scheduler.
    """
    optimizer = trainer.optimizers[0]  # Lightning's placeholder for none has no parameters
    is_learning = any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])
    if not is_learning or isinstance(optimizer, torch.optim.LBFGS):
        found = type(optimizer).__name__ if is_learning else "none with trainable parameters"
        raise ConfigurationError(
            f"configure_optimizers must return an optimizer that steps without a closure, such as SGD, got {found}"
        )
    if ignored_milestones:
        raise ConfigurationError(
            "lr_milestones must be left out with optimizer, lr_scheduler or an overridden configure_optimizers, got "
            f"{tuple(ignored_milestones)}"
        )


def check_resumable(
    checkpoint: dict[str, Any],
    checkpoint_format: int,
    trainer: Trainer,
    sequence: TaskSequence,
    optimizers: object,
    needed: tuple[type[Callback], ...],
) -> None:
    """Refuse to resume from a checkpoint that is incomplete or implausible. Weights have been checked before.

    Lightning would restore optimizers and loops only after the loggers have started, and skip missing parts.

    Args:
        checkpoint: The checkpoint.
        checkpoint_format: Its format.
        trainer: The Trainer of the resumed run.
        sequence: Its data module.
        optimizers: New optimizers, as the method configures them.
        needed: Callbacks whose state must be present.
    """
    states = checks.mapping("callbacks", checkpoint.get("callbacks", {}))
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    stateful = [callback for callback in callbacks if isinstance(callback, needed)]
    missing = [name for name in ("optimizer_states", "loops") if not checkpoint.get(name)]
    missing += [callback.state_key for callback in stateful if not states.get(callback.state_key)]
    if missing:
        raise ConfigurationError(f"this checkpoint cannot be resumed from: it lacks {', '.join(missing)}")
    for name, state in states.items():
        checks.mapping(f"callbacks/{name}", state)
    if not isinstance(checkpoint.get("lr_schedulers"), list):
        checks.refuse("lr_schedulers", "a list", checkpoint.get("lr_schedulers"))
    if isinstance(optimizers, list) and all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
        check_optimizers(checkpoint["optimizer_states"], optimizers)
    epochs = sequence.num_tasks * sequence.epochs_per_task
    has_position = type(sequence).train_dataloader is TaskSequence.train_dataloader
    check_progress(checkpoint, checkpoint_format, trainer.fit_loop.state_dict(), epochs, has_position)
    check_clock(checkpoint, sequence.num_tasks, sequence.epochs_per_task)
