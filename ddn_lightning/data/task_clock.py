"""The task clock: the position of training in the task sequence, for data, methods and callbacks."""

from dataclasses import dataclass

from lightning.pytorch import Trainer


@dataclass(frozen=True)
class TaskClock:
    """A position in training: task ``t`` has the epochs ``[t * epochs_per_task, (t + 1) * epochs_per_task)``.

    The clock does not tell whether the work at this position is *done*: a run resumed on a task's last batch still has
    to end the task. The method counts that in ``tasks_finished`` and ``epochs_evaluated``.

    Args:
        num_tasks: Number of tasks in the sequence.
        epochs_per_task: Epochs of each task.
        epochs_done: Epochs trained.
        is_last_batch: Whether the current, or last trained, batch is the last one of its epoch.

    Example:
        >>> clock = TaskClock(num_tasks=3, epochs_per_task=2, epochs_done=3, is_last_batch=True)
        >>> clock.epoch, clock.task, clock.epoch_in_task, clock.at_task_end
        (3, 1, 1, True)
    """

    num_tasks: int
    epochs_per_task: int
    epochs_done: int
    is_last_batch: bool

    @classmethod
    def of(cls, trainer: Trainer, num_tasks: int, epochs_per_task: int) -> "TaskClock":
        """The position of a Trainer; also correct while it restores a checkpoint, unlike ``trainer.current_epoch``."""
        epochs: int = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        return cls(num_tasks, epochs_per_task, epochs, trainer.is_last_batch)

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one between two epochs."""
        return min(self.epochs_done, self.num_tasks * self.epochs_per_task - 1)

    @property
    def task(self) -> int:
        """The current task, or the next one between two tasks."""
        return self.epoch // self.epochs_per_task

    @property
    def epoch_in_task(self) -> int:
        """The epoch within the task, counted from 0."""
        return self.epoch % self.epochs_per_task

    @property
    def at_task_end(self) -> bool:
        """Whether the current batch is the last one of its task."""
        return self.epoch_in_task == self.epochs_per_task - 1 and self.is_last_batch

    def is_over(self, tasks: int) -> bool:
        """Whether all epochs of the first ``tasks`` tasks are done."""
        return self.epochs_done >= tasks * self.epochs_per_task
