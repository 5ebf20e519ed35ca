"""Where a resumed run goes on, told to Lightning's loops in one of two forms."""

from typing import Any

from lightning.pytorch import Trainer

from ddn_lightning.errors import ConfigurationError

FORMAT = 2  # of our checkpoints: since 2, Lightning counts every epoch exactly once, however often a run was resumed


def settle(checkpoint: dict[str, Any], checkpoint_format: int = FORMAT) -> None:
    """Rewrite the loop counters of a checkpoint to those of its last completed batch. Doing so twice changes nothing.

    Lightning's counters differ with the hook that a checkpoint was saved in and with what stopped the run, and it tells
    about ten such cases apart when it resumes. All that matters is the last batch trained on: either the epoch goes on
    after it, or it was the epoch's last. What is still owed then, such as the evaluation, is done by the method and its
    callbacks before the next batch.

    Args:
        checkpoint: Lightning's checkpoint; its ``loops`` and ``epoch`` are changed.
        checkpoint_format: The format that it was saved in.
    """
    fit_loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    begun, counted = epochs["current"]["started"], epochs["current"]["processed"]
    done, total = batches["current"]["processed"], batches["total"]["processed"]
    is_epoch_done = batches["is_last_batch"]
    if checkpoint_format < 2 and not is_epoch_done and begun == counted:
        raise ConfigurationError(
            "this checkpoint of version 0.1 does not tell its epoch, as its run had been resumed at an epoch's end: "
            "start the run anew"
        )
    if done == 0:  # saved before an epoch's first batch was completed: the last one is the epoch's before
        begun, done, is_epoch_done = begun - 1, 1, True
    if begun <= 0:  # there is no last batch yet
        begun, done, total, is_epoch_done = 0, 0, 0, False
    checkpoint["epoch"] = max(begun - 1, 0)  # of no importance to Lightning, but people look at it
    _set(epochs, current=begun, total=begun, unfinished=("processed", "completed"))
    _set(batches, current=done, total=total, unfinished=("completed",))
    _set(fit_loop["epoch_loop.val_loop.batch_progress"], current=0, total=0)  # no evaluation goes on in its middle
    batches["is_last_batch"] = is_epoch_done
    # where an epoch goes on, Lightning adds the last batch itself
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = max(total - (not is_epoch_done), 0)
    for loader in fit_loop["state_dict"].get("combined_loader", []):
        loader["position"] = done


def _set(progress: dict[str, Any], current: int, total: int, unfinished: tuple[str, ...] = ()) -> None:
    """Set Lightning's counters of something, of which the last one is still on its way in some respects."""
    for name, number in (("current", current), ("total", total)):
        for counter in progress[name]:
            progress[name][counter] = max(number - (counter in unfinished), 0)


def begin_next_epoch(trainer: Trainer) -> None:
    """Let a run that was resumed after an epoch's last batch begin the next epoch as any other.

    To be called once training starts. Lightning counts the resumed epoch as done by then, but would still take the next
    one for its continuation: it would not count it as begun, and the checkpoint of a second stop would look as if it
    had been saved between two epochs.
    """
    fit_loop, epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    if fit_loop.restarted_mid_epoch and epoch_loop.batch_progress.is_last_batch:
        fit_loop.reset_restart_stage()
        epoch_loop.restarting = False
