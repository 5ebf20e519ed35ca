"""Keeps the hypernetwork as it was at the end of the task before."""

from lightning.pytorch import Trainer

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.learner import Learner


class DistillNetSnapshot(TaskCallback):
    """Tells the distiller that a task has ended: Data-Distill-Net then takes its snapshot, G_old <- G.

    Other callbacks have looked at the task's end by then, at the labels that it was trained with.
    """

    def after_task_end(self, trainer: Trainer, method: Learner, task: int) -> None:
        """Take it."""
        if method.distiller is not None:
            method.distiller.snapshot()
