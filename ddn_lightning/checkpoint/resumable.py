"""Whether a run can go on from a checkpoint: asked before any of it is restored."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.progress import check_clock, check_progress
from ddn_lightning.checkpoint.weights import check_optimizers
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError


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
