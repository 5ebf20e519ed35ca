"""The progress of a run: the task, what of it is finished, and what was measured."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.metrics.accuracy_matrix import MATRICES

TEST_ACCURACIES = ("class_il", "task_il", "calibrated")  # the last: class-incremental, calibrated statistics


class Progress:
    """What of a run is done. :class:`TaskClock` says where it is: after a resume, work may be left at that position.

    Work between tasks counts here when it is finished, so that a run which was killed within it repeats it. Other
    objects read the attributes, and change them by the methods only.

    Example:
        >>> progress = Progress()
        >>> progress.begin(0)
        >>> progress.is_between_tasks
        False
        >>> with progress.task_end():
        ...     pass
        >>> progress.is_between_tasks, progress.tasks_finished
        (True, 1)
    """

    def __init__(self) -> None:
        self.reset(num_tasks=1)

    def reset(self, num_tasks: int) -> None:
        """Start a run of so many tasks."""
        self.task = -1  # the task being trained, counted from 0
        self.tasks_finished = 0  # tasks whose work at the end is done
        self.epochs_evaluated = 0  # epochs up to and including the last evaluated one
        self.test_accuracy: dict[str, list[float | None]] = {}  # of each task, by kind; empty until opened
        self.matrices = {name: torch.full((num_tasks, num_tasks), torch.nan) for name in MATRICES}
        self.is_unfinished = False  # whether a batch is being stored or a task ended, so that a checkpoint is torn

    @property
    def tasks_seen(self) -> int:
        """Number of tasks begun."""
        return self.task + 1

    @property
    def is_between_tasks(self) -> bool:
        """Whether the current task has ended."""
        return self.tasks_finished == self.tasks_seen

    def begin(self, task: int) -> None:
        """Begin a task."""
        self.task = task

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Work that a checkpoint must not interrupt: one that is saved here says that it is not exact."""
        self.is_unfinished = True
        yield
        self.is_unfinished = False

    @contextmanager
    def task_end(self) -> Iterator[None]:
        """The work at a task's end, which counts when the context is left without an exception."""
        with self.unfinished():
            yield
            self.tasks_finished = self.tasks_seen

    def record_evaluation(self, epochs: int) -> None:
        """Count the evaluation after so many epochs."""
        self.epochs_evaluated = epochs

    def record_row(self, task: int, rows: Mapping[str, Tensor]) -> None:
        """Write the accuracies measured after a task into the matrices of these names."""
        for name, row in rows.items():
            self.matrices[name][task] = row.to(self.matrices[name])

    def record_test(self, accuracies: Mapping[str, Tensor]) -> None:
        """Write the accuracies on the test images; ``None`` where nothing was measured."""
        self.test_accuracy = {
            kind: [None if value != value else value for value in row.tolist()] for kind, row in accuracies.items()
        }

    def grow(self, num_tasks: int) -> None:
        """Continue with further tasks; the test images are opened again after the last of them."""
        self.matrices = {
            name: resized(matrix, (num_tasks, num_tasks), torch.nan) for name, matrix in self.matrices.items()
        }
        self.test_accuracy = {}

    def state_dict(self) -> dict[str, Any]:
        """Everything; the method saves it among its weights, all that Lightning returns from other processes."""
        return {
            "task": self.task,
            "tasks_finished": self.tasks_finished,
            "epochs_evaluated": self.epochs_evaluated,
            **({"test_accuracy": self.test_accuracy} if self.test_accuracy else {}),
            **{name: matrix.clone() for name, matrix in self.matrices.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the progress of a run."""
        self.task, self.tasks_finished = state["task"], state["tasks_finished"]
        self.epochs_evaluated, self.test_accuracy = state["epochs_evaluated"], state.get("test_accuracy", {})
        self.matrices = {name: state[name].float().cpu() for name in MATRICES}
