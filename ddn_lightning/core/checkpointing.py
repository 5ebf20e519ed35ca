"""What a checkpoint holds of a method besides weights, optimizers and callbacks, and how it is restored."""

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from ddn_lightning.callbacks.forgetting import Forgetting, calibration_of
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.checkpoint.checks import check_buffers, check_weights
from ddn_lightning.checkpoint.construction import INIT_ARGS, changed_arguments, construction_of, plain
from ddn_lightning.checkpoint.loops import FORMAT, is_within_step, settle
from ddn_lightning.checkpoint.optimizers import CONFIGURED
from ddn_lightning.checkpoint.parts import MEMORY, STREAMS, load_parts, save_parts
from ddn_lightning.checkpoint.record import (
    BATCH_NORM,
    CALIBRATED,
    CHECKPOINT_KEY,
    EXTRA_STATE,
    MODEL,
    PARTS,
    TRANSFORM,
    check_number_of_classes,
    checked_record,
    model_of,
)
from ddn_lightning.core.buffer_bytes import set_size
from ddn_lightning.core.growth import grow_checkpoint
from ddn_lightning.core.trainer_checks import check_resumable
from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.errors import note
from ddn_lightning.lightning_internals import batches_fetched, has_trainer
from ddn_lightning.networks.batch_statistics import Buffers

NEEDED_CALLBACKS = (Forgetting, RandomState)  # whose state a resume needs


@dataclass
class Restored:
    """What a fit has restored.

    Args:
        checkpoint: The checkpoint, until the optimizers have been checked.
        is_growing: Whether the fit continues from it with further tasks.
        new_outputs: Outputs that it does not have.
    """

    checkpoint: dict[str, Any]
    is_growing: bool = False
    new_outputs: int = 0


def save(method: Any, checkpoint: dict[str, Any]) -> None:
    """Add the record of a method to a checkpoint, and normalise the loops to the last completed batch."""
    is_torn = method.progress.is_unfinished or is_within_step(checkpoint)
    settle(checkpoint, fetched=batches_fetched(method.trainer))
    calibrated = _separate_statistics(checkpoint["state_dict"])
    if not calibrated and (evaluation := calibration_of(method.trainer)) is not None:
        calibrated = evaluation.calibrated_buffers(method)
    checkpoint[CONFIGURED] = method.optimization.state_dict()
    checkpoint[CHECKPOINT_KEY] = {
        "format": FORMAT,
        "method": type(method).__name__,
        "num_classes": method.num_classes,
        "sequence": method.sequence.resume_state(),
        MODEL: construction_of(method),
        TRANSFORM: plain(method.transform),
        "within_step": is_torn,
        PARTS: save_parts(method.parts),
        **({CALIBRATED: calibrated} if calibrated else {}),
    }


def restore(method: Any, checkpoint: dict[str, Any]) -> Restored | None:
    """Check a checkpoint, and restore what Lightning does not; refuse one of another method or number of classes.

    Returns:
        For a fit, what optimizers and callbacks need of it.
    """
    record = checked_record(checkpoint.get(CHECKPOINT_KEY), type(method).__name__)
    model_of(checkpoint)
    tasks, data = record["sequence"]["task_classes"], record["sequence"]["data"]
    is_fit = has_trainer(method) and method.trainer.state.fn == "fit"
    is_growing, new_outputs = is_fit and method.sequence.continues(record["sequence"]), 0
    check_number_of_classes(record, method.num_classes, may_be_fewer=is_growing)
    load_parts({STREAMS: method.streams}, record[PARTS])
    if not is_growing:
        method.task_classes = tasks
        method.record_data_info(DataRecord.from_plain(data))
    if not is_fit:
        _use_calibrated_statistics(checkpoint, dict(method.named_buffers()))
    if not has_trainer(method):
        return None
    if method.trainer.precision == "64-true":
        method.double()  # Lightning does this after it has restored the weights, which would round them
    if is_fit or method.has_sequence:
        method.sequence.resume_from(record["sequence"])
    if is_growing:
        if method.hparams.get("buffer_bytes") is not None:  # new classes leave the number of samples as it is
            set_size(method, model_of(checkpoint)[INIT_ARGS]["buffer_size"])
        new_outputs = grow_checkpoint(method, checkpoint, record["num_classes"], len(tasks))
        if new_outputs and MEMORY in record[PARTS]:
            record[PARTS][MEMORY] = method.memory.grown_state(record[PARTS][MEMORY], method.num_classes)
    check_weights(checkpoint.get("state_dict"), method.state_dict(), method.strict_loading)
    if not is_fit:
        return None
    check_resumable(checkpoint, method.trainer, method.sequence, NEEDED_CALLBACKS)
    load_parts(method.parts, record[PARTS])
    settle(checkpoint)
    if record.get("within_step"):
        note("the checkpoint was saved within a step, as by an error: the run goes on, but not bit for bit")
    return Restored(checkpoint, is_growing, new_outputs)


def resume_optimizers(method: Any, resumed: Restored | None) -> list[str]:
    """Check optimizer states, before Lightning restores them; returns which arguments override the checkpoint's."""
    if resumed is None:
        return []
    options = method.optimization.resume(method, resumed.checkpoint, resumed.is_growing)
    checkpoint, expected = resumed.checkpoint, ["num_classes=", "transform="] if resumed.is_growing else []
    if plain(method.transform) == checkpoint[CHECKPOINT_KEY].get(TRANSFORM):
        expected.append("transform=")  # a loaded method was given that which a new one takes from the data
    changed = [one for one in changed_arguments(model_of(checkpoint), method) if not one.startswith(tuple(expected))]
    is_sgd = method.optimization.build_optimizer is None and not method.overrides_optimizers
    resumed.checkpoint = {}  # it has a copy of the memory
    return changed + [one for one in options if not (is_sgd and one.startswith("optimizer."))]  # SGD's are arguments


def note_changes(trainer: Trainer, changes: list[str]) -> None:
    """Say which arguments override the checkpoint's; the command has its own note."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    if changes and not any(isinstance(callback, RunRecord) for callback in callbacks):
        note(f"resuming with other arguments than the checkpoint's: {', '.join(changes)}")


def _separate_statistics(state: dict[str, Any]) -> Buffers:
    """Put the running statistics among the weights; returns the calibrated ones that were there, if any."""
    running = state[EXTRA_STATE][BATCH_NORM]
    calibrated = {name: state[name].clone() for name in running}
    state.update(running)
    state[EXTRA_STATE][BATCH_NORM] = {}
    return calibrated


def _use_calibrated_statistics(checkpoint: dict[str, Any], own: dict[str, Tensor]) -> None:
    """Put calibrated statistics among the weights, and keep the running ones for a fit."""
    if CALIBRATED not in checkpoint[CHECKPOINT_KEY]:
        return
    buffers = check_buffers(CALIBRATED, checkpoint[CHECKPOINT_KEY][CALIBRATED], own)
    state = checkpoint["state_dict"]
    running = {name: state[name] for name in buffers if name in state}
    state[EXTRA_STATE] = {**state[EXTRA_STATE], BATCH_NORM: running}
    state.update(buffers)
