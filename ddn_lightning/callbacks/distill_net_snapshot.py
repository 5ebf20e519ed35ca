"""Copies G to G_old at the end of a task. A callback by design, as are reservoir sampling and forgetting."""

from lightning.pytorch import Trainer

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.learner import Learner


class DistillNetSnapshot(TaskCallback):
    """Calls the distiller's ``snapshot`` at each task's end: Data-Distill-Net then sets G_old <- G.

    It runs after the ``on_task_end`` of all callbacks, which still see the labels that the task was trained with.
    """

    def after_task_end(self, trainer: Trainer, method: Learner, task: int) -> None:
        """Take the snapshot."""
        if method.distiller is not None:
            method.distiller.snapshot()
