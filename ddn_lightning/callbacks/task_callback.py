"""Hooks that Lightning does not have: a task has ended, and was measured; training diverges."""

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from ddn_lightning.learner import Learner


class TaskCallback(Callback):
    """A callback that is told about tasks, exactly once per task, also by a run that was killed and resumed."""

    def on_task_end(self, trainer: Trainer, method: Learner, task: int) -> None:
        """The last batch of a task is trained on and the method's own work is done; the evaluation comes next."""

    def after_task_end(self, trainer: Trainer, method: Learner, task: int) -> None:
        """The same moment, when all callbacks have seen it by :meth:`on_task_end`: for what prepares the next task.

        What is changed here is seen by none of them, in whatever order the callbacks are given.
        """

    def on_task_measured(self, trainer: Trainer, method: Learner, task: int, table: dict[str, Tensor]) -> None:
        """The evaluation at a task's end is done; ``table`` is what :class:`PredictionTable` has found."""

    def on_divergence(self, trainer: Trainer, method: Learner, reason: str) -> None:
        """Training stops here, on all ranks, because a loss or a weight is not finite.

        Unlike ``on_exception``, which Lightning leaves out in processes that it has forked or spawned.
        """

    def on_task_exit(self, trainer: Trainer, method: Learner, task: int) -> None:
        """Nothing more happens to a task: the next one is about to begin, or training is over."""
