"""Measures forgetting: fills the accuracy matrix at each task's end."""

from contextlib import ExitStack
from itertools import islice
from typing import Any, Literal, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.data.progress import TEST_ACCURACIES
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.distill.learner import Watched, method_of
from ddn_lightning.distributed import moved
from ddn_lightning.errors import ConfigurationError, check_choice, note, note_once
from ddn_lightning.lightning_internals import batches_logged
from ddn_lightning.metrics.accuracy_matrix import CALIBRATED_MATRIX, AccuracyMatrix, summary
from ddn_lightning.metrics.functional import Over, Reference, check_definition
from ddn_lightning.metrics.prediction_table import PredictionTable
from ddn_lightning.networks.batch_statistics import Buffers
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.samples import Samples

Statistics = Literal["running", "memory", "both"]


class Forgetting(TaskCallback):
    """Writes one row of the accuracy matrix per task and logs ACC, FM, BWT, AAA and the accuracy of each task.

    A row is measured after the task's last batch, on the test images of the tasks seen, and stored on all ranks in
    ``method.progress``, which survives a resume and returns from forked processes; ``method.accuracy_matrix`` reads it.
    Evaluations within a task are logged but not stored. Other callbacks receive each row's predictions in
    :meth:`TaskCallback.on_task_measured`.

    If the data has a validation split, all of this is measured on that split instead. The test images are then measured
    once, after the last task, logged as ``test/*`` and stored in the method's ``test_accuracy``.

    By default BatchNorm predicts with its running statistics. ``statistics`` never changes the training.

    Args:
        over: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        reference: See :func:`~ddn_lightning.metrics.functional.forgetting`.
        statistics: BatchNorm statistics of the evaluation: ``running``; ``memory``, calibrated by a forward pass over
            the stored samples before each evaluation; or ``both``, which predicts each test batch twice and stores the
            calibrated accuracies in ``calibrated_accuracy_matrix``. With ``memory`` and ``both`` a trained or loaded
            method keeps the calibrated statistics.
        class_balanced: Whether all classes have equal weight in calibrated statistics, however many samples each has.
        calibration_batch_size: Maximum number of stored samples per forward pass.

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
        check_choice(get_args(Statistics), statistics=statistics)
        if calibration_batch_size < 2:
            raise ConfigurationError(f"calibration_batch_size must be 2 or more, got {calibration_batch_size}")
        self.over: Over = over
        self.reference: Reference = reference
        self.statistics: Statistics = statistics
        self.class_balanced = class_balanced
        self.calibration_batch_size = calibration_batch_size
        self._restored_statistics: Statistics = statistics  # the option in the checkpoint
        self._calibrated: Buffers = {}  # for the second prediction
        self._evaluation = ExitStack()  # closing it restores the running statistics

    @classmethod
    def of(cls, trainer: Trainer) -> "Forgetting":
        """The Trainer's callback of this class."""
        return next(c for c in trainer.callbacks if isinstance(c, cls))  # type: ignore[attr-defined]

    def summary(self, matrix: Tensor) -> dict[str, Tensor]:
        """ACC, FM, BWT and AAA of a matrix, with this callback's definition of forgetting."""
        return summary(matrix, self.over, self.reference)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset; a checkpoint is restored after this."""
        if stage == "fit":
            self._restored_statistics = self.statistics

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that calibration is impossible, or differs from the checkpoint."""
        self._note_obstacle(method_of(pl_module))
        if self._restored_statistics != self.statistics:
            note(
                f"statistics is {self.statistics} from now on, {self._restored_statistics} in the checkpoint: earlier "
                "tasks were measured with the latter"
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the metrics and set up the BatchNorm statistics."""
        method = method_of(pl_module)
        self.stage = max(method.task, 0)
        self.metric = AccuracyMatrix(method.sequence.is_class_of_task).to(method.device)
        self.predictions = PredictionTable(method.num_classes).to(method.device)
        self._calibrated = {}
        self._evaluation.close()  # in case the last evaluation was interrupted
        if trainer.state.fn == "fit":
            method.before_evaluation()
        else:
            self._note_obstacle(method)
        if self.statistics == "memory" and method.running_buffers is None:
            self._evaluation.enter_context(method.calibrated(self.calibrated_buffers(method)))
        elif self.statistics == "both":
            trained = self._evaluation.enter_context(method.uncalibrated())
            self._calibrated = trained or self.calibrated_buffers(method)
            self.calibrated_metric = AccuracyMatrix(method.sequence.is_class_of_task).to(method.device)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Samples, batch_idx: int, *_: object
    ) -> None:
        """Update the metrics; with ``both``, predict the batch again with calibrated statistics."""
        method = method_of(pl_module)
        assert batch.tasks is not None
        tasks = moved(batch.tasks, outputs.device)
        self.metric.update(self.stage, outputs, batch.labels, tasks)
        self.predictions.update(outputs, batch.labels)
        if self._calibrated:
            step = method.test_step if trainer.testing else method.validation_step
            with isolate_rng(), method.calibrated(self._calibrated), trainer.precision_plugin.val_step_context():
                outputs = step(batch, batch_idx)
            self.calibrated_metric.update(self.stage, outputs, batch.labels, tasks)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the accuracies, and store the row at a task's end; skip the sanity check."""
        if trainer.sanity_checking:
            return
        values, method = self._row("val"), method_of(pl_module)
        clock = method.sequence.clock
        if trainer.state.fn == "fit" and clock.is_last_batch:
            method.progress.record_evaluation(clock.epochs_done + 1)
            values |= self._store_row(method) if clock.at_task_end else {}
        pl_module.log_dict(values, sync_dist=True)

    def on_validation_end(self, *_: object) -> None:
        """Restore the running statistics."""
        self._evaluation.close()

    on_exception = on_validation_end  # type: ignore[assignment]  # which ignores the exception
    on_test_start = on_validation_start
    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the accuracies on all tasks."""
        pl_module.log_dict(self._row("test"), sync_dist=True)

    on_test_end = on_validation_end  # type: ignore[assignment]  # which ignores the exception

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Run an evaluation within the task that a resume has skipped."""
        if batch_idx == 0 and (method := method_of(pl_module)).sequence.clock.task == method.task:
            self._run_missed_evaluation(trainer, method)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After the last task, run its evaluation if none was due, and open the test images: before it is saved."""
        method = method_of(pl_module)
        clock = method.sequence.clock
        if clock.is_last_batch and clock.is_over(clock.num_tasks):
            self._run_missed_evaluation(trainer, method)
        self._open_test(trainer, method)

    def on_task_exit(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Run the evaluation at the task's end, and open the test images, if a resume has skipped it."""
        self._run_missed_evaluation(trainer, method)
        self._open_test(trainer, method)

    def state_dict(self) -> dict[str, Any]:
        """The ``statistics`` option."""
        return {"statistics": self.statistics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the option of the checkpoint, to note a difference."""
        self._restored_statistics = state_dict["statistics"]

    def calibrated_buffers(self, method: Watched) -> Buffers:
        """The method's calibrated statistics, with this callback's options."""
        return method.calibrated_buffers(self.calibration_batch_size, self.class_balanced)

    def statistics_of(self, method: Watched) -> Statistics:
        """The statistics that a method is evaluated with: ``running`` if it cannot be calibrated."""
        return "running" if method.obstacle_to_calibration else self.statistics

    def _note_obstacle(self, method: Watched) -> None:
        if self.statistics != self.statistics_of(method):
            note(f"statistics={self.statistics} has no effect: {method.obstacle_to_calibration}")

    def _run_missed_evaluation(self, trainer: Trainer, method: Watched) -> None:
        """Run the evaluation that Lightning skips when it resumes from a checkpoint of an epoch's last batch."""
        epochs = method.sequence.epochs_to_evaluate(method.sequence.clock.epochs_done)
        if trainer.limit_val_batches == 0 or epochs <= method.progress.epochs_evaluated:
            return
        loader = method.sequence.evaluation_loader(method.tasks_seen)
        self._evaluate(trainer, method, loader, loader.batches_within(trainer.limit_val_batches))
        method.progress.record_evaluation(epochs)
        values = self._row("val") | (self._store_row(method) if epochs % method.sequence.epochs_per_task == 0 else {})
        _log_now(trainer, values, epochs - 1)

    def _open_test(self, trainer: Trainer, method: Watched) -> None:
        """Measure the test images, once per run, after the last evaluation on the validation split."""
        sequence = method.sequence
        is_over = method.progress.epochs_evaluated == sequence.num_tasks * sequence.epochs_per_task
        is_closed = sequence.validation is None or sequence.closed_test
        if is_closed or not is_over or method.progress.test_accuracy:
            return
        loader = sequence.test_dataloader()
        number = loader.batches_within(trainer.limit_test_batches)
        if number == 0:
            return
        self._evaluate(trainer, method, loader, number)
        rows = [*self._last_row(self.metric)]
        rows += [self._last_row(self.calibrated_metric)[0]] if self._calibrated else []
        method.progress.record_test(dict(zip(TEST_ACCURACIES, rows, strict=False)))
        _log_now(trainer, self._row("test"), method.progress.epochs_evaluated - 1)

    def _evaluate(self, trainer: Trainer, method: Watched, loader: TaskLoader, number: int) -> None:
        """Measure the first batches of a loader outside of Lightning's evaluation."""
        module: Any = method
        self.on_validation_start(trainer, module)
        with evaluating(method):
            for index, batch in enumerate(islice(loader, number)):
                batch = batch.to(method.device)
                with trainer.precision_plugin.val_step_context():  # not for the metrics, which keep their precision
                    scores = method.validation_step(batch, index)
                self.on_validation_batch_end(trainer, module, scores, batch, index)
        self.on_validation_end()

    def _store_row(self, method: Watched) -> dict[str, Tensor]:
        """Store the row just measured in the method's matrices; returns their summary."""
        class_il, task_il = self._last_row(self.metric)
        method.progress.record_row(self.stage, {"accuracy_matrix": class_il, "task_il_matrix": task_il})
        if missing := [task + 1 for task in class_il[: self.stage + 1].isnan().nonzero().flatten().tolist()]:
            limit = method.trainer.limit_val_batches
            note_once(f"no image of the tasks {missing} was measured (limit_val_batches = {limit}): no ACC and FM")
        shape = self.predictions.confusion.shape
        table = {name: value.reshape(shape) for name, value in self.predictions.compute().items()}
        for callback in method.trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
            if isinstance(callback, TaskCallback):
                callback.on_task_measured(method.trainer, method, self.stage, table)
        found = self.summary(method.accuracy_matrix)
        if self._calibrated:
            method.progress.record_row(self.stage, {CALIBRATED_MATRIX: self._last_row(self.calibrated_metric)[0]})
            found |= {f"calibrated_{k}": v for k, v in self.summary(method.calibrated_accuracy_matrix).items()}
        return found

    def _last_row(self, metric: AccuracyMatrix) -> tuple[Tensor, Tensor]:
        """The row just measured, class- and task-incremental."""
        matrices, shape = metric.compute(), metric.total.shape  # torchmetrics squeezes the matrix of a single task
        return matrices["class_il"].reshape(shape)[self.stage], matrices["task_il"].reshape(shape)[self.stage]

    def _row(self, split: str) -> dict[str, Tensor]:
        """The accuracies just measured, by their log names."""
        metrics = {split: self.metric} | ({f"{split}/calibrated": self.calibrated_metric} if self._calibrated else {})
        accuracies: dict[str, Tensor] = {}
        for prefix, metric in metrics.items():
            row, task_il_row = self._last_row(metric)
            tasks = (~row.isnan()).nonzero().flatten().tolist()
            accuracies[f"{prefix}/average_accuracy"] = row[tasks].mean()
            accuracies[f"{prefix}/task_il"] = task_il_row[tasks].mean()
            accuracies |= {f"{prefix}/accuracy/task_{task + 1}": row[task] for task in tasks}
        return accuracies


def calibration_of(trainer: Trainer) -> Forgetting | None:
    """The callback that evaluates with calibrated statistics, if any."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    return next((c for c in callbacks if isinstance(c, Forgetting) and c.statistics != "running"), None)


def _log_now(trainer: Trainer, values: dict[str, Tensor], epoch: int) -> None:
    """Log values of an evaluation outside of Lightning's."""
    row = {name: float(value) + 0.0 for name, value in values.items()} | {"epoch": epoch}  # -0.0 becomes 0.0
    for logger in trainer.loggers:
        logger.log_metrics(row, step=batches_logged(trainer) - 1)  # the step of that epoch's last batch
        logger.save()
