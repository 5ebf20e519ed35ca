"""Checks of Trainer options and checkpoints that would silently be ignored or give wrong results."""

from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.loops import check_loops
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.lightning_internals import duration_of, time_interval

NO_ACCUMULATION = "manual optimization steps on each batch: raise batch_size instead"
AVERAGES = "give the method evaluate_average=0.99"
REFUSED: dict[type[Callback], str] = {
    BatchSizeFinder: "it would try batch sizes on the first task only: choose batch_size",
    EarlyStopping: "it would end the whole sequence before the later tasks: choose epochs_per_task",
    GradientAccumulationScheduler: NO_ACCUMULATION,
    LearningRateFinder: "it would train on the first task and keep the weights: compare runs with different lr",
    ModelPruning: "it prunes after the last evaluation: prune method.network after training",
    StochasticWeightAveraging: f"it replaces the weights after the last evaluation; {AVERAGES}",
    WeightAveraging: f"evaluations outside of Lightning's loop would not see its weights; {AVERAGES}",
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
        if isinstance(callback, ModelCheckpoint) and time_interval(callback) is not None:
            raise ConfigurationError(
                "callbacks must not contain ModelCheckpoint(train_time_interval=...): Lightning never saves by time in "
                "manual optimization. Use LastCheckpoint(every_n_minutes=...)"
            )
        if isinstance(callback, ModelCheckpoint) and callback.monitor not in ALWAYS_COMPARABLE:
            raise ConfigurationError(
                f"callbacks must not contain ModelCheckpoint(monitor={callback.monitor!r}): it would compare models "
                "after different tasks and may keep that of task 1 as the best. Leave out monitor to keep the last "
                "model, or use monitor='epoch', mode='max' and save_top_k to keep the last ones"
            )
    if trainer.strategy.restore_checkpoint_after_setup:  # as of all that shard: FSDP, DeepSpeed, model parallel
        raise ConfigurationError(
            f"strategy must be auto, ddp or another that keeps all weights on each device, got "
            f"{type(trainer.strategy).__name__}: a gradient or an update of a shard alone would be wrong"
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
        is_timer = type(callback) is Timer  # that of max_time; a subclass may count something else than seconds
        if is_timer and (duration := duration_of(callback)) is not None and duration <= 0:
            raise ConfigurationError(f"max_time must be positive, got {duration:g} s")
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
    if (algorithm := trainer.gradient_clip_algorithm) is not None:
        raise ConfigurationError(
            f"gradient_clip_algorithm must be left out, got {algorithm.value}: Lightning does not clip in manual "
            f"optimization. Give the method gradient_clip_val and gradient_clip_algorithm='{algorithm.value}' instead"
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


def check_resumable(
    checkpoint: dict[str, Any],
    trainer: Trainer,
    sequence: TaskSequence,
    needed: tuple[type[Callback], ...],
) -> None:
    """Refuse to resume from a checkpoint that is incomplete.

    Weights have been checked before; optimizers are checked when they exist.

    Lightning would restore optimizers and loops only after the loggers have started, and skip missing parts.

    Args:
        checkpoint: The checkpoint.
        trainer: The Trainer of the resumed run.
        sequence: Its data module.
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
    check_loops(checkpoint, has_position=type(sequence).train_dataloader is TaskSequence.train_dataloader)
