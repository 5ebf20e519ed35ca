"""Callback hooks for task ends and divergence, which Lightning does not have."""

from typing import Any

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from ddn_lightning.distill.learner import Watched


class TaskCallback(Callback):
    """A callback with task hooks, once per task. A run that is killed within one repeats it when it is resumed."""

    def on_task_end(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Called after a task's last batch and the method's ``end_task``, before the evaluation."""

    def after_task_end(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Called after the ``on_task_end`` of all callbacks, to prepare the next task.

        Changes made here are invisible to every ``on_task_end``, in any order of the callbacks.
        """

    def on_task_measured(self, trainer: Trainer, method: Watched, task: int, table: dict[str, Tensor]) -> None:
        """Called after the evaluation at a task's end; ``table`` is the result of :class:`PredictionTable`."""

    def on_divergence(self, trainer: Trainer, method: Watched, reason: str) -> None:
        """Called on all ranks when training stops because a loss or a weight is not finite.

        Lightning does not call ``on_exception`` in processes that it has forked or spawned.
        """

    def on_task_exit(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Called when a task is completely done: before the next task, or after training."""


def call_task_hook(trainer: Trainer, hook: str, *arguments: Any) -> None:
    """Call a hook of all task callbacks, in their order."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
        if isinstance(callback, TaskCallback):
            getattr(callback, hook)(trainer, *arguments)
