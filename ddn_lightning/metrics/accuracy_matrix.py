"""The accuracy matrix of a task sequence as a torchmetrics metric."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ddn_lightning.metrics.functional import (
    Over,
    Reference,
    average_accuracy,
    average_anytime_accuracy,
    backward_transfer,
    forgetting,
)

CALIBRATED_MATRIX = "calibrated_accuracy_matrix"
MATRICES = ("accuracy_matrix", "task_il_matrix", CALIBRATED_MATRIX)  # buffers of a method


class AccuracyMatrix(Metric):
    """Accuracy in percent on each task after each task, class-incremental and task-incremental.

    *Class-incremental* accuracy chooses among all classes, *task-incremental* among those of the sample's task. Counts
    are summed over devices.

    Args:
        task_classes: Classes of each task: ``bool`` (tasks, num_classes), or their numbers (tasks, classes per task);
            the highest is the last class.
        over: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        reference: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> metric = AccuracyMatrix(torch.tensor([[0, 1], [2, 3]]))
        >>> scores, labels = torch.eye(4), torch.tensor([0, 1, 2, 2])
        >>> metric.update(0, scores[:2], labels[:2], tasks=torch.tensor([0, 0]))
        >>> metric.update(1, scores, labels, tasks=torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()["average_accuracy"]
        tensor(75.)
    """

    full_state_update = False
    class_il_correct: Tensor
    task_il_correct: Tensor
    total: Tensor
    is_class_of_task: Tensor

    def __init__(
        self, task_classes: Tensor, over: Over = "previous", reference: Reference = "best", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.over = over
        self.reference = reference
        num_tasks = len(task_classes)
        is_class_of_task = task_classes
        if task_classes.dtype != torch.bool:
            is_class_of_task = torch.zeros(num_tasks, 1 + int(task_classes.max()), dtype=torch.bool)
            is_class_of_task.scatter_(1, task_classes, True)
        self.register_buffer("is_class_of_task", is_class_of_task.clone(), persistent=False)
        for name in ("class_il_correct", "task_il_correct", "total"):
            self.add_state(name, torch.zeros(num_tasks, num_tasks, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, stage: int, scores: Tensor, labels: Tensor, tasks: Tensor) -> None:
        """Count a batch.

        Args:
            stage: The task after which the batch is evaluated.
            scores: Score of every class (batch, num_classes).
            labels: Class of each sample.
            tasks: Task of each sample.
        """
        is_choice = self.is_class_of_task[tasks]  # (batch, num_classes)
        class_il_hits = scores.argmax(dim=1) == labels
        task_il_hits = scores.masked_fill(~is_choice, -torch.inf).argmax(dim=1) == labels
        self.class_il_correct[stage].index_add_(0, tasks, class_il_hits.long())
        self.task_il_correct[stage].index_add_(0, tasks, task_il_hits.long())
        self.total[stage].index_add_(0, tasks, torch.ones_like(tasks))

    def compute(self) -> dict[str, Tensor]:
        """Both matrices (``nan`` where not measured) and the summary of the class-incremental one."""
        class_il = 100 * self.class_il_correct / self.total
        task_il = 100 * self.task_il_correct / self.total
        return {"class_il": class_il, "task_il": task_il, **summary(class_il, self.over, self.reference)}


def summary(matrix: Tensor, over: Over = "previous", reference: Reference = "best") -> dict[str, Tensor]:
    """ACC, FM, BWT and AAA of the stages measured so far; empty before the first, and if one was measured in part.

    Stages after which nothing was measured are left out, and FM and BWT if only one was measured of several tasks.

    >>> nan = torch.nan
    >>> found = summary(torch.tensor([[90.0, nan, nan], [60.0, 80.0, nan], [nan, nan, nan]]))
    >>> {name: value.item() for name, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'average_accuracy': 70.0, 'forgetting': 30.0, 'backward_transfer': -30.0, 'average_anytime_accuracy': 80.0}
    """
    is_measured = ~matrix.isnan()
    is_whole = (is_measured | is_measured.new_ones(is_measured.shape).triu(1)).all(dim=1)  # each task learned so far
    if not is_whole.any() or (is_measured.any(dim=1) & ~is_whole).any():
        return {}
    stages = 1 + int(is_whole.nonzero().max())
    done = matrix[:stages, :stages]
    found = {
        "average_accuracy": average_accuracy(done),
        "forgetting": forgetting(done, over, reference),
        "backward_transfer": backward_transfer(done),
        "average_anytime_accuracy": average_anytime_accuracy(done),
    }
    return {name: value for name, value in found.items() if not value.isnan()}
