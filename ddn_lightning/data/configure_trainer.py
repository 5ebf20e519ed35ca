"""The Trainer's settings that follow from a task sequence."""

from lightning.pytorch import Trainer

from ddn_lightning.errors import ConfigurationError

LIGHTNINGS_MAX_EPOCHS = 1000  # the Trainer's default, indistinguishable from a user's own 1000


def configure_trainer(trainer: Trainer, num_tasks: int, epochs_per_task: int, evaluate_every_n_epochs: int) -> None:
    """Set the number of epochs and the evaluations of a fit; refuse settings that contradict the sequence."""
    if trainer.fit_loop.epoch_progress.total.ready:
        raise ConfigurationError(
            "this Trainer has already run a fit, and a second one would train nothing: make a new Trainer (one fit "
            "trains the whole task sequence)"
        )
    if trainer.val_check_interval != 1.0:
        raise ConfigurationError(
            f"val_check_interval must be left at 1.0, got {trainer.val_check_interval}: use "
            "evaluate_every_n_epochs to measure accuracy within tasks"
        )
    epochs = num_tasks * epochs_per_task
    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # Lightning does not declare it
        trainer.fit_loop.epoch_loop.max_steps = -1  # Lightning's limit of batches holds in each task
    else:
        if trainer.max_epochs not in (None, -1, LIGHTNINGS_MAX_EPOCHS, epochs):
            raise ConfigurationError(
                f"max_epochs must be {epochs} = {num_tasks} tasks x {epochs_per_task} epochs_per_task, "
                f"or left out, got {trainer.max_epochs}"
            )
        trainer.check_val_every_n_epoch = evaluate_every_n_epochs
    trainer.fit_loop.max_epochs = epochs
    # any other number may give a resumed run the data of another epoch's task
    trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]  # nor this
