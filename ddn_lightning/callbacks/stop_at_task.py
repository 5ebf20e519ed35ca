"""Stops training at the end of a task."""

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.errors import check_positive
from ddn_lightning.learner import Watched, method_of


class StopAtTask(TaskCallback):
    """Stops training after a number of tasks, as a trial of ``ddn tune`` does.

    The results up to there equal, bit for bit, those of a run that was not stopped; their status is ``stopped``. The
    decision depends on the accuracy matrix alone, so a run that is killed and resumed stops at the same task.

    Args:
        tasks: Stop after this number of tasks.

    Example:
        >>> first_three = StopAtTask(tasks=3)  # for Trainer(callbacks=[...])
    """

    def __init__(self, tasks: int) -> None:
        check_positive(tasks=tasks)
        self.tasks = tasks

    def reason(self, matrix: Tensor) -> str | None:
        """Why training stops, given the accuracy matrix so far; ``None`` if it continues."""
        finished = int((~matrix.diagonal().isnan()).cumprod(0).sum())
        return f"after {self.tasks} of {len(matrix)} tasks, as asked" if finished >= self.tasks else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop a resumed run that was killed before it could stop."""
        self._stop(trainer, method_of(pl_module))

    def on_task_measured(self, trainer: Trainer, method: Watched, task: int, table: dict[str, Tensor]) -> None:
        """Stop if the row just measured says so."""
        self._stop(trainer, method)

    def _stop(self, trainer: Trainer, method: Watched) -> None:
        if self.reason(method.accuracy_matrix) is not None:
            trainer.should_stop = True
