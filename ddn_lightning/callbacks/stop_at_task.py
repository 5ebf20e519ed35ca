"""Stops training at a task's end: after a number of tasks, or where accuracy is too low."""

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.errors import check_positive
from ddn_lightning.learner import Learner
from ddn_lightning.metrics.functional import average_accuracy

ROUNDING = 1e-3  # results.json, of which a least accuracy is a median, has four digits


class StopAtTask(TaskCallback):
    """Stops training at a task's end, as a trial of ``ddn tune`` does.

    Its results are those of the whole run so far, bit for bit, and are recorded as ``stopped``. The decision depends on
    the accuracy matrix alone, so a run that is killed and resumed stops at the same task.

    Args:
        tasks: Stop after this number of tasks; ``None`` for no limit.
        least: Stop after a task where ACC over the tasks so far is below its number here, in percent; ``None`` in place
            of a number never stops, nor does a task beyond the end of the list.

    Example:
        >>> first_three = StopAtTask(tasks=3)  # for Trainer(callbacks=[...])
        >>> if_below_60_after_the_second = StopAtTask(least=[None, 60.0])
    """

    def __init__(self, tasks: int | None = None, least: Sequence[float | None] = ()) -> None:
        if tasks is not None:
            check_positive(tasks=tasks)
        self.tasks = tasks
        self.least = tuple(least)

    def reason(self, matrix: Tensor) -> str | None:
        """Why training stops, given the accuracy matrix so far; ``None`` if it goes on."""
        for task in range(int((~matrix.diagonal().isnan()).cumprod(0).sum())):
            acc = float(average_accuracy(matrix[: task + 1, : task + 1]))
            least = self.least[task] if task < len(self.least) else None
            if least is not None and acc < least - ROUNDING:
                return f"ACC {acc:.2f} after task {task + 1} is below {least:.2f}"
            if task + 1 == self.tasks:
                return f"after {self.tasks} of {len(matrix)} tasks, as asked"
        return None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop a resumed run that was killed before it could stop."""
        assert isinstance(pl_module, Learner)
        self._stop(trainer, pl_module)

    def on_task_measured(self, trainer: Trainer, method: Learner, task: int, table: dict[str, Tensor]) -> None:
        """Stop if the row just measured says so."""
        self._stop(trainer, method)

    def _stop(self, trainer: Trainer, method: Learner) -> None:
        if self.reason(method.accuracy_matrix) is not None:
            trainer.should_stop = True
