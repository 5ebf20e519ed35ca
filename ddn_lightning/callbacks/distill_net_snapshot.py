"""Copies G to G_old at the end of a task.

A callback by design, as are reservoir sampling and forgetting.
"""

from lightning.pytorch import Trainer

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.distill.learner import Watched


class DistillNetSnapshot(TaskCallback):
    """Calls ``snapshot`` of the terms of the loss at each task's end: Data-Distill-Net then sets G_old <- G.

    It runs after the ``on_task_end`` of all callbacks, which still see the labels that the task was trained with.
    """

    def after_task_end(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Take the snapshot."""
        for term in method.terms:
            term.snapshot()
