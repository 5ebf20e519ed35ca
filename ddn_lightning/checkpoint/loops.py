"""The progress of a run in its checkpoint: Lightning's loop counters, normalised to its last completed batch."""

from typing import Any

from lightning.pytorch import Trainer

FORMAT = 3  # of our checkpoints
BATCHES = "epoch_loop.batch_progress"


def settle(checkpoint: dict[str, Any], fetched: int = 0) -> None:
    """Rewrite the loop counters of a checkpoint to those of its last completed batch; idempotent.

    Lightning's counters depend on the hook that saved the checkpoint and on the cause of the stop; its resume
    distinguishes about ten cases. Only two matter: the last batch was within its epoch, or at its end. The method and
    its callbacks catch up on skipped work, such as the evaluation, before the next batch.

    Args:
        checkpoint: The checkpoint.
        fetched: Batches fetched in the epoch; 0 for a checkpoint that was settled when it was saved.
    """
    fit_loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    begun = epochs["current"]["started"]
    done, total = batches["current"]["processed"], batches["total"]["processed"]
    # Lightning calls a batch the last one as soon as it has fetched it
    is_epoch_done = batches["is_last_batch"] and max(fetched, batches["current"]["ready"]) <= done
    if done == 0:  # saved before an epoch's first batch was completed: the last batch is that of the previous epoch
        begun, done, is_epoch_done = begun - 1, 1, True
    if begun <= 0:  # no batch was completed
        begun, done, total, is_epoch_done = 0, 0, 0, False
    checkpoint["epoch"] = max(begun - 1, 0)  # for humans; Lightning does not use it
    _set(epochs, current=begun, total=begun, unfinished=("processed", "completed"))
    _set(batches, current=done, total=total, unfinished=("completed",))
    _set(fit_loop["epoch_loop.val_loop.batch_progress"], current=0, total=0)  # an evaluation always starts over
    batches["is_last_batch"] = is_epoch_done
    # within an epoch, Lightning adds the last batch itself
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = max(total - (not is_epoch_done), 0)
    for loader in fit_loop["state_dict"].get("combined_loader", []):
        loader["position"] = done


def is_within_step(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint, not yet settled, was saved in the middle of a step, as by an error."""
    batches = checkpoint["loops"]["fit_loop"][BATCHES]["current"]
    return bool(batches["processed"] < batches["started"])


def _set(progress: dict[str, Any], current: int, total: int, unfinished: tuple[str, ...] = ()) -> None:
    """Set a progress tracker; the last item does not count yet in the ``unfinished`` counters."""
    for name, number in (("current", current), ("total", total)):
        for counter in progress[name]:
            progress[name][counter] = max(number - (counter in unfinished), 0)


def begin_next_epoch(trainer: Trainer) -> None:
    """Start the next epoch normally in a run that was resumed after an epoch's last batch.

    Called when training starts. Lightning has counted the resumed epoch as done by then, but would treat the next one
    as its continuation and not count its start; the checkpoint of a second stop would seem to lie between two epochs.
    """
    fit_loop, epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    if fit_loop.restarted_mid_epoch and epoch_loop.batch_progress.is_last_batch:
        fit_loop.reset_restart_stage()
        epoch_loop.restarting = False


def add_position(checkpoint: dict[str, Any], has_position: bool) -> None:
    """Add the loader's position in the epoch, which Lightning forgets in an evaluation after the fit.

    Args:
        checkpoint: The checkpoint.
        has_position: Whether the loader saves its position in the epoch.
    """
    loop = checkpoint["loops"]["fit_loop"]
    if has_position and loop[BATCHES]["total"]["ready"]:
        done = loop[BATCHES]["current"]["processed"]
        loop["state_dict"].setdefault("combined_loader", [{"position": done}])
