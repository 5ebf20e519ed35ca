"""Measures what was forgotten: fills the accuracy matrix at each task's end."""

from itertools import islice
from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from torch import Tensor

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.evaluation import evaluating
from ddn_lightning.metrics.accuracy_matrix import AccuracyMatrix, summary
from ddn_lightning.metrics.functional import Over, Reference, check_definition
from ddn_lightning.samples import Samples

if TYPE_CHECKING:
    from ddn_lightning.methods.base import ReplayMethod


class Forgetting(TaskCallback):
    """Writes one row of the accuracy matrix per task and logs ACC, FM, BWT, AAA and the accuracy of each task.

    A row is measured on the test split of the tasks seen, after the task's last batch, and stored in the method's
    buffers ``accuracy_matrix`` and ``task_il_matrix`` on all ranks: there it survives a resume, and comes back from
    forked processes. Evaluations within a task are logged but not stored.

    Args:
        over: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        reference: See :func:`~ddn_lightning.metrics.functional.forgetting`.
    """

    def __init__(self, over: Over = "previous", reference: Reference = "best") -> None:
        check_definition(over, reference)
        self.over: Over = over
        self.reference: Reference = reference

    @classmethod
    def of(cls, trainer: Trainer) -> "Forgetting":
        """The one that a Trainer has."""
        return next(c for c in trainer.callbacks if isinstance(c, cls))  # type: ignore[attr-defined]

    def summary(self, matrix: Tensor) -> dict[str, Tensor]:
        """ACC, FM, BWT and AAA so far, by the definition of this callback."""
        return summary(matrix, self.over, self.reference)

    def on_validation_start(self, trainer: Trainer, pl_module: "ReplayMethod") -> None:  # type: ignore[override]
        """Count from zero."""
        self.stage = max(pl_module.task, 0)
        self.metric = AccuracyMatrix(pl_module.sequence.task_classes).to(pl_module.device)

    def on_validation_batch_end(  # type: ignore[override]
        self,
        trainer: Trainer,
        pl_module: "ReplayMethod",
        outputs: Tensor,
        batch: Samples,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch."""
        assert batch.tasks is not None
        self.metric.update(self.stage, outputs, batch.labels, batch.tasks.to(outputs.device))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: "ReplayMethod") -> None:  # type: ignore[override]
        """Log the accuracies, and store the row at a task's end. The sanity check counts for nothing."""
        if trainer.sanity_checking:
            return
        self._log_row("val", pl_module)
        if trainer.state.fn == "fit" and pl_module.sequence.at_task_end:
            self._store_row(pl_module)
            pl_module.log_dict(self.summary(pl_module.accuracy_matrix), sync_dist=True)

    on_test_start = on_validation_start  # type: ignore[assignment]
    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: "ReplayMethod") -> None:  # type: ignore[override]
        """Log the accuracies on all tasks."""
        self._log_row("test", pl_module)

    def on_task_exit(self, trainer: Trainer, method: "ReplayMethod", task: int) -> None:
        """Measure a row that is missing: Lightning skips the evaluation after a checkpoint on the task's last batch."""
        limit = trainer.limit_val_batches
        if limit == 0 or not method.accuracy_matrix[task, : task + 1].isnan().any():
            return
        loader = method.sequence.evaluation_loader(method.tasks_seen)
        number = int(len(loader) * limit) if isinstance(limit, float) else limit
        self.on_validation_start(trainer, method)
        with evaluating(method), trainer.precision_plugin.val_step_context():
            for index, batch in enumerate(islice(loader, number)):
                batch = batch.to(method.device)
                self.on_validation_batch_end(trainer, method, method.validation_step(batch, index), batch, index)
        self._store_row(method)

    def _store_row(self, method: "ReplayMethod") -> None:
        measured = self.metric.compute()
        method.accuracy_matrix[self.stage] = measured["class_il"][self.stage]
        method.task_il_matrix[self.stage] = measured["task_il"][self.stage]

    def _log_row(self, split: str, method: "ReplayMethod") -> None:
        measured = self.metric.compute()
        row, task_il_row = measured["class_il"][self.stage], measured["task_il"][self.stage]
        tasks = (~row.isnan()).nonzero().flatten().tolist()
        accuracies = {f"{split}/average_accuracy": row[tasks].mean(), f"{split}/task_il": task_il_row[tasks].mean()}
        accuracies |= {f"{split}/accuracy/task_{task + 1}": row[task] for task in tasks}
        method.log_dict(accuracies, sync_dist=True)
