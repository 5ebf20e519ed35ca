"""What a Trainer must not be told, because it would be ignored or give wrong results without a word.

The same holds for a checkpoint to go on from.
"""

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
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_warn

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.loops import check_clock, check_progress
from ddn_lightning.checkpoint.weights import check_optimizers
from ddn_lightning.data.task_sequence import TaskSequence
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


def check_resumable(
    checkpoint: dict[str, Any],
    checkpoint_format: int,
    trainer: Trainer,
    sequence: TaskSequence,
    optimizers: object,
    needed: tuple[type[Callback], ...],
) -> None:
    """Raise if a checkpoint lacks something, or has something implausible. Weights are checked already.

    Lightning restores optimizers and loops only after it has told the loggers of the run, and does without what is not
    there.

    Args:
        checkpoint: The checkpoint.
        checkpoint_format: The format that it was saved in.
        trainer: Who is to go on.
        sequence: Its data.
        optimizers: New ones, as the method configures them.
        needed: Callbacks whose state must be there.
    """
    states = checks.mapping("callbacks", checkpoint.get("callbacks", {}))
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    carriers = [callback for callback in callbacks if isinstance(callback, needed)]
    missing = [name for name in ("optimizer_states", "loops") if not checkpoint.get(name)]
    missing += [carrier.state_key for carrier in carriers if not states.get(carrier.state_key)]
    if missing:
        raise ConfigurationError(f"this checkpoint cannot be trained on from: it lacks {', '.join(missing)}")
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
