"""The task clock: where training is in its sequence. Data, methods and callbacks all ask this one."""

from dataclasses import dataclass

from lightning.pytorch import Trainer


@dataclass(frozen=True)
class TaskClock:
    """A moment of training: task ``t`` has the epochs ``[t * epochs_per_task, (t + 1) * epochs_per_task)``.

    What has been *done* at a moment is no part of it: a run that is resumed on a task's last batch has yet to end the
    task. That is counted by the method, in ``tasks_finished`` and ``epochs_evaluated``.

    Args:
        num_tasks: Tasks of the sequence.
        epochs_per_task: Epochs of each.
        epochs_done: Epochs trained.
        is_last_batch: Whether the batch being trained, or trained last, is the last one of its epoch.

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
        """The moment that a Trainer is at: right while it restores a checkpoint, when its ``current_epoch`` is not."""
        epochs: int = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        return cls(num_tasks, epochs_per_task, epochs, trainer.is_last_batch)

    @property
    def epoch(self) -> int:
        """Epoch that is, or is about to be, trained."""
        return min(self.epochs_done, self.num_tasks * self.epochs_per_task - 1)

    @property
    def task(self) -> int:
        """Task that is, or is about to be, trained."""
        return self.epoch // self.epochs_per_task

    @property
    def epoch_in_task(self) -> int:
        """The epoch, counted from the task's first."""
        return self.epoch % self.epochs_per_task

    @property
    def at_task_end(self) -> bool:
        """Whether the batch just trained on was the last one of its task."""
        return self.epoch_in_task == self.epochs_per_task - 1 and self.is_last_batch

    def is_over(self, tasks: int) -> bool:
        """Whether all epochs of the first so many tasks are done."""
        return self.epochs_done >= tasks * self.epochs_per_task
