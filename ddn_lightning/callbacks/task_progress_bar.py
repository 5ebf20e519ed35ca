"""A progress bar that says which task it is, and how much has been forgotten so far."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.methods.replay_method import ReplayMethod


class TaskProgressBar(RichProgressBar):
    """Lightning's Rich bar with the task, and the ACC and FM after the last finished one.

    Args:
        refresh_rate: Batches between two updates.
    """

    def __init__(self, refresh_rate: int = 1) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self._so_far: dict[str, str] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show what a resumed run has reached already."""
        super().on_train_start(trainer, pl_module)
        self._look(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show what was just measured."""
        super().on_validation_end(trainer, pl_module)
        self._look(trainer, pl_module)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """What stands to the right of the bar."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if isinstance(pl_module, ReplayMethod) and pl_module.tasks_seen:
            metrics = {"task": f"{pl_module.tasks_seen}/{pl_module.sequence.num_tasks}", **self._so_far, **metrics}
        return metrics

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, ReplayMethod):  # once per task, not per refresh: reading it waits for the device
            measured = Forgetting.of(trainer).summary(pl_module.accuracy_matrix)
            names = {"ACC": "average_accuracy", "FM": "forgetting"}
            self._so_far = {short: f"{float(measured[name]):.1f}" for short, name in names.items() if measured}
