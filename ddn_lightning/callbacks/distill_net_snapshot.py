"""Copies G to G_old at the end of a task, and saves what the distiller keeps between steps.

A callback by design, as are reservoir sampling and forgetting.
"""

from typing import Any

from lightning.pytorch import Trainer

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.learner import Learner


class DistillNetSnapshot(TaskCallback):
    """Calls the distiller's ``snapshot`` at each task's end: Data-Distill-Net then sets G_old <- G.

    It runs after the ``on_task_end`` of all callbacks, which still see the labels that the task was trained with.
    """

    method: Learner

    def setup(self, trainer: Trainer, pl_module: Learner, stage: str) -> None:  # type: ignore[override]  # methods are Learners
        """Keep the method, which owns the distiller."""
        self.method = pl_module

    def after_task_end(self, trainer: Trainer, method: Learner, task: int) -> None:
        """Take the snapshot."""
        if method.distiller is not None:
            method.distiller.snapshot()

    def state_dict(self) -> dict[str, Any]:
        """The distiller's part of the training state. Lightning calls this on every rank."""
        return {} if self.method.distiller is None else self.method.distiller.training_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        if self.method.distiller is not None:
            self.method.distiller.load_training_state(state_dict, self.method.device)
