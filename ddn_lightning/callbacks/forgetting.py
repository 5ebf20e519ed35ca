"""Measures what was forgotten: fills the accuracy matrix at each task's end."""

import sys
from contextlib import ExitStack
from itertools import islice
from typing import Any, Literal, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from ddn_lightning.batch_statistics import Buffers
from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.checkpoint import checks
from ddn_lightning.distributed import moved
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.learner import Learner
from ddn_lightning.lightning_internals import batches_logged
from ddn_lightning.metrics.accuracy_matrix import CALIBRATED_MATRIX, MATRICES, AccuracyMatrix, summary
from ddn_lightning.metrics.functional import Over, Reference, check_definition
from ddn_lightning.metrics.prediction_table import PredictionTable
from ddn_lightning.optimization import evaluating
from ddn_lightning.samples import Samples

Statistics = Literal["running", "memory", "both"]


class Forgetting(TaskCallback):
    """Writes one row of the accuracy matrix per task and logs ACC, FM, BWT, AAA and the accuracy of each task.

    A row is measured on the test split of the tasks seen, after the task's last batch, and stored in the method's
    buffers ``accuracy_matrix`` and ``task_il_matrix`` on all ranks: there it survives a resume, and comes back from
    forked processes. Evaluations within a task are logged but not stored. Other callbacks learn of each row, and of
    what was predicted, by :meth:`TaskCallback.on_task_measured`.

    BatchNorm predicts with running statistics, those of the last few batches, unless ``statistics`` says otherwise.
    Training is the same in any case, bit for bit.

    Args:
        over: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        reference: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        statistics: BatchNorm statistics to evaluate with: ``running``, as they are; ``memory``, calibrated, by a
            forward pass over the stored samples before each evaluation; or ``both``, which predicts each test batch
            twice and stores what it measures with calibrated ones in ``calibrated_accuracy_matrix``. With ``memory``
            and ``both`` a trained or loaded method has the calibrated ones.
        class_balanced: Whether all classes count alike in calibrated statistics, however many samples are stored.
        calibration_batch_size: Stored samples per forward pass at most.

    Example:
        >>> as_avalanche = Forgetting(reference="first")  # for Trainer(callbacks=[...]); there is one by default
        >>> two_in_one_run = Forgetting(statistics="both")
    """

    def __init__(
        self,
        over: Over = "previous",
        reference: Reference = "best",
        statistics: Statistics = "running",
        class_balanced: bool = False,
        calibration_batch_size: int = 256,
    ) -> None:
        check_definition(over, reference)
        if statistics not in get_args(Statistics):
            raise ConfigurationError(f"statistics must be one of {get_args(Statistics)}, got {statistics!r}")
        if calibration_batch_size < 2:
            raise ConfigurationError(f"calibration_batch_size must be 2 or more, got {calibration_batch_size}")
        self.over: Over = over
        self.reference: Reference = reference
        self.statistics: Statistics = statistics
        self.class_balanced = class_balanced
        self.calibration_batch_size = calibration_batch_size
        self._statistics_before: Statistics = statistics  # in the checkpoint that training goes on from
        self._calibrated: Buffers = {}  # to predict with a second time
        self._in_place = ExitStack()  # whose closing brings back the statistics from before an evaluation

    @classmethod
    def of(cls, trainer: Trainer) -> "Forgetting":
        """The one that a Trainer has."""
        return next(c for c in trainer.callbacks if isinstance(c, cls))  # type: ignore[attr-defined]

    def summary(self, matrix: Tensor) -> dict[str, Tensor]:
        """ACC, FM, BWT and AAA so far, by the definition of this callback."""
        return summary(matrix, self.over, self.reference)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing is evaluated yet. A checkpoint, which is restored after this, knows better."""
        if stage == "fit":
            self._statistics_before = self.statistics

    def on_fit_start(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Say what may be expected of calibration and will not be."""
        self._note_obstacle(trainer, pl_module)
        if self._statistics_before != self.statistics and trainer.is_global_zero:
            print(
                f"note: statistics is {self.statistics} from now on, {self._statistics_before} in the checkpoint: the "
                "tasks before were measured otherwise",
                file=sys.stderr,
            )

    def on_validation_start(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Count from zero."""
        self.stage = max(pl_module.task, 0)
        self.metric = AccuracyMatrix(pl_module.sequence.task_classes).to(pl_module.device)
        self.predictions = PredictionTable(pl_module.num_classes).to(pl_module.device)
        self._calibrated = {}
        self._in_place.close()  # an evaluation that was broken off
        if trainer.state.fn != "fit":
            self._note_obstacle(trainer, pl_module)
        if self.statistics == "memory" and pl_module.running_buffers is None:
            self._in_place.enter_context(pl_module.calibrated(self.calibrated_buffers(pl_module)))
        elif self.statistics == "both":
            trained = self._in_place.enter_context(pl_module.uncalibrated())
            self._calibrated = trained or self.calibrated_buffers(pl_module)
            self.calibrated_metric = AccuracyMatrix(pl_module.sequence.task_classes).to(pl_module.device)

    def on_validation_batch_end(  # type: ignore[override]
        self,
        trainer: Trainer,
        pl_module: Learner,
        outputs: Tensor,
        batch: Samples,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch; where both are asked for, predict it with calibrated statistics too."""
        assert batch.tasks is not None
        tasks = moved(batch.tasks, outputs.device)
        self.metric.update(self.stage, outputs, batch.labels, tasks)
        self.predictions.update(outputs, batch.labels)
        if self._calibrated:
            step = pl_module.test_step if trainer.testing else pl_module.validation_step
            with isolate_rng(), pl_module.calibrated(self._calibrated), trainer.precision_plugin.val_step_context():
                outputs = step(batch, batch_idx)
            self.calibrated_metric.update(self.stage, outputs, batch.labels, tasks)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Log the accuracies, and store the row at a task's end. The sanity check counts for nothing."""
        if trainer.sanity_checking:
            return
        values = self._row("val")
        clock = pl_module.sequence.clock
        if trainer.state.fn == "fit" and clock.is_last_batch:
            pl_module.epochs_evaluated = clock.epochs_done + 1
            values |= self._store_row(pl_module) if clock.at_task_end else {}
        pl_module.log_dict(values, sync_dist=True)

    def on_validation_end(self, *_: object) -> None:
        """Training goes on with its own statistics."""
        self._in_place.close()

    def on_exception(self, *_: object) -> None:
        """The same."""
        self._in_place.close()

    on_test_start = on_validation_start  # type: ignore[assignment]
    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Learner) -> None:  # type: ignore[override]
        """Log the accuracies on all tasks."""
        pl_module.log_dict(self._row("test"), sync_dist=True)

    on_test_end = on_validation_end  # type: ignore[assignment]

    def on_train_batch_start(  # type: ignore[override]
        self, trainer: Trainer, pl_module: Learner, batch: Samples, batch_idx: int
    ) -> None:
        """Make up for an evaluation within the task that a resume has skipped."""
        if batch_idx == 0 and pl_module.sequence.clock.task == pl_module.task:
            self._run_missed_evaluation(trainer, pl_module)

    def on_task_exit(self, trainer: Trainer, method: Learner, task: int) -> None:
        """Make up for the evaluation of the task's end, if a resume has skipped it."""
        self._run_missed_evaluation(trainer, method)

    def state_dict(self) -> dict[str, Any]:
        """How evaluations are done."""
        return {"statistics": self.statistics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """How evaluations were done."""
        self._statistics_before = state_dict.get("statistics", "running")  # version 0.1 had no others
        if self._statistics_before not in get_args(Statistics):
            checks.refuse("statistics", f"one of {get_args(Statistics)}", self._statistics_before)

    def on_load_checkpoint(  # type: ignore[override]
        self, trainer: Trainer, pl_module: Learner, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse a matrix, restored just before, that has not one row for each task that was evaluated."""
        if trainer.state.fn != "fit":
            return
        sequence = pl_module.sequence
        most = sequence.num_tasks * sequence.epochs_per_task
        epochs = checks.integer("epochs_evaluated", pl_module.epochs_evaluated, 0, most)
        for name in MATRICES:
            rows = (~getattr(pl_module, name).isnan()).any(dim=1).nonzero().flatten().tolist()
            tasks = range(epochs // sequence.epochs_per_task)
            is_plausible = set(rows) <= set(tasks) if name == CALIBRATED_MATRIX else rows == list(tasks)
            if not is_plausible:
                raise ConfigurationError(
                    f"the checkpoint's {name} must have a row for each task evaluated in {epochs} epochs of "
                    f"{sequence.epochs_per_task} per task, got rows {rows}"
                )

    def calibrated_buffers(self, method: Learner) -> Buffers:
        """What the method is to predict with instead of its running statistics."""
        return method.calibrated_buffers(self.calibration_batch_size, self.class_balanced)

    def statistics_of(self, method: Learner) -> Statistics:
        """What a method is evaluated with: running statistics where there is nothing to calibrate."""
        return "running" if method.obstacle_to_calibration else self.statistics

    def _note_obstacle(self, trainer: Trainer, method: Learner) -> None:
        if self.statistics != self.statistics_of(method) and trainer.is_global_zero:
            reason = method.obstacle_to_calibration
            print(f"note: statistics={self.statistics} has no effect: {reason}", file=sys.stderr)

    def _run_missed_evaluation(self, trainer: Trainer, method: Learner) -> None:
        """Do the evaluation that Lightning leaves out when it resumes from a checkpoint on an epoch's last batch."""
        limit = trainer.limit_val_batches
        every = method.sequence.evaluate_every_n_epochs
        epochs = method.sequence.clock.epochs_done // every * every
        if limit == 0 or epochs <= method.epochs_evaluated:
            return
        loader = method.sequence.evaluation_loader(method.tasks_seen)
        number = int(len(loader) * limit) if isinstance(limit, float) else limit
        self.on_validation_start(trainer, method)
        with evaluating(method):
            for index, batch in enumerate(islice(loader, number)):
                batch = batch.to(method.device)
                with trainer.precision_plugin.val_step_context():  # for the network only: metrics keep their precision
                    scores = method.validation_step(batch, index)
                self.on_validation_batch_end(trainer, method, scores, batch, index)
        self.on_validation_end()
        method.epochs_evaluated = epochs
        values = self._row("val") | (self._store_row(method) if epochs % method.sequence.epochs_per_task == 0 else {})
        row = {name: float(value) + 0.0 for name, value in values.items()} | {"epoch": epochs - 1}  # never -0.0
        for logger in trainer.loggers:
            logger.log_metrics(row, step=batches_logged(trainer) - 1)  # as if at the last batch of that epoch
            logger.save()

    def _store_row(self, method: Learner) -> dict[str, Tensor]:
        """Write the row just measured into the matrices; returns what they say now."""
        class_il, task_il = self._measured(self.metric)
        method.store_row(self.stage, {"accuracy_matrix": class_il, "task_il_matrix": task_il})
        shape = self.predictions.confusion.shape
        table = {name: value.reshape(shape) for name, value in self.predictions.compute().items()}
        for callback in method.trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
            if isinstance(callback, TaskCallback):
                callback.on_task_measured(method.trainer, method, self.stage, table)
        found = self.summary(method.accuracy_matrix)
        if self._calibrated:
            method.store_row(self.stage, {CALIBRATED_MATRIX: self._measured(self.calibrated_metric)[0]})
            found |= {f"calibrated_{k}": v for k, v in self.summary(method.calibrated_accuracy_matrix).items()}
        return found

    def _measured(self, metric: AccuracyMatrix) -> tuple[Tensor, Tensor]:
        """The row just measured, class- and task-incremental."""
        matrices = metric.compute()
        # torchmetrics turns the matrix of a single task into a number
        shape = metric.total.shape
        rows = [matrices[name].reshape(shape)[self.stage] for name in ("class_il", "task_il")]
        return rows[0], rows[1]

    def _row(self, split: str) -> dict[str, Tensor]:
        """The accuracies just measured, by the names under which they are logged."""
        metrics = {split: self.metric} | ({f"{split}/calibrated": self.calibrated_metric} if self._calibrated else {})
        accuracies: dict[str, Tensor] = {}
        for prefix, metric in metrics.items():
            row, task_il_row = self._measured(metric)
            tasks = (~row.isnan()).nonzero().flatten().tolist()
            accuracies |= {
                f"{prefix}/average_accuracy": row[tasks].mean(),
                f"{prefix}/task_il": task_il_row[tasks].mean(),
            }
            accuracies |= {f"{prefix}/accuracy/task_{task + 1}": row[task] for task in tasks}
        return accuracies
