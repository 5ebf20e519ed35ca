"""What a Trainer must not be told, because it would be ignored or give wrong results without a word."""

from collections.abc import Sequence
from traceback import walk_stack

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_warn

from ddn_lightning.errors import ConfigurationError

NO_ACCUMULATION = "each step is taken by hand, on one batch: raise batch_size instead"
AVERAGES = "CLSER with evaluate=stable measures a moving average of the network"
REFUSED: dict[type[Callback], str] = {
    BatchSizeFinder: "it would try batch sizes on the first task only, and results depend on it: choose batch_size",
    EarlyStopping: "it would end the whole sequence, with the tasks to come never learned: choose epochs_per_task",
    GradientAccumulationScheduler: NO_ACCUMULATION,
    LearningRateFinder: "it would train on the first task only and leave that in the weights: compare runs by their lr",
    StochasticWeightAveraging: f"it replaces the weights after the last evaluation, unmeasured; {AVERAGES}",
    WeightAveraging: f"it would average what is counted, such as the classes seen, with the weights; {AVERAGES}",
}


def check_trainer(trainer: Trainer) -> None:
    """Refuse what cannot work in a fit over a task sequence, before anything has changed; warn of what may mislead.

    Args:
        trainer: The Trainer, with the user's callbacks and the data attached.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
        for kind, reason in REFUSED.items():
            if isinstance(callback, kind):
                raise ConfigurationError(f"callbacks must not contain {type(callback).__name__}: {reason}")
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None and callback.save_top_k > 0:
            rank_zero_warn(
                f"ModelCheckpoint(monitor={callback.monitor!r}) compares models that know different tasks, and may "
                "keep that of task 1 as the best: leave out monitor to keep the last one"
            )
    if trainer.precision == "16-mixed":
        raise ConfigurationError(
            "precision must not be 16-mixed, which scales the loss: gradients taken by hand would not be scaled "
            "back. Use bf16-mixed"
        )
    if trainer.gradient_clip_val:
        raise ConfigurationError(
            f"gradient_clip_val must be left out, got {trainer.gradient_clip_val}: Lightning does not clip in manual "
            f"optimization; the method does, by --model.gradient_clip_val {trainer.gradient_clip_val}"
        )
    if trainer.accumulate_grad_batches != 1:
        raise ConfigurationError(
            f"accumulate_grad_batches must be 1, got {trainer.accumulate_grad_batches}: {NO_ACCUMULATION}"
        )
    every = getattr(getattr(trainer, "datamodule", None), "evaluate_every_n_epochs", None)
    if every is not None and trainer.check_val_every_n_epoch not in (None, 1, every):
        raise ConfigurationError(
            f"check_val_every_n_epoch must be left out, got {trainer.check_val_every_n_epoch}: accuracy is measured at "
            "task ends; evaluate_every_n_epochs of the data measures it within tasks too"
        )


def check_schedule(trainer: Trainer, milestones_of_others: Sequence[int]) -> None:
    """Refuse an optimizer that cannot be stepped by hand, and a schedule that would be ignored.

    Args:
        trainer: The Trainer, with the optimizers.
        milestones_of_others: ``lr_milestones``, where the optimizer is the user's own.
    """
    optimizer = trainer.optimizers[0]  # Lightning's stand-in for none has nothing to learn
    is_learning = any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])
    if not is_learning or isinstance(optimizer, torch.optim.LBFGS):
        found = type(optimizer).__name__ if is_learning else "none with parameters to learn"
        raise ConfigurationError(
            f"configure_optimizers must return an optimizer that steps along one gradient, such as SGD, got {found}"
        )
    if milestones_of_others:
        raise ConfigurationError(
            "lr_milestones must be left out with one's own optimizer, lr_scheduler or configure_optimizers, whose "
            f"learning rate is left as it is, got {tuple(milestones_of_others)}"
        )


def is_resuming(trainer: Trainer) -> bool:
    """Whether the fit under way was given a checkpoint. Lightning 2.6 keeps that to itself until ``setup`` is over."""
    for frame, _ in walk_stack(None):
        if frame.f_code is Trainer._run.__code__ and frame.f_locals["self"] is trainer:
            return frame.f_locals["ckpt_path"] is not None
    return False
