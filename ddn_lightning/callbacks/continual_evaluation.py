"""Continual evaluation: measures accuracy every few steps, on a small fixed subset."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.data.balanced_subset import balanced_subset
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.learner import Watched, method_of
from ddn_lightning.distributed import moved, sum_across_ranks
from ddn_lightning.errors import ConfigurationError, check_choice, check_not_negative, check_positive, note
from ddn_lightning.metrics.anytime import anytime_summary
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.runs.anytime import UNTRAINED, AnytimeRecord, Evaluation
from ddn_lightning.samples import Samples

AnytimeStatistics = Literal["running", "memory"]


class ContinualEvaluation(TaskCallback):
    """Measures the tasks seen every few steps and at task ends, to see what happens between two task ends.

    So De Lange et al. (ICLR 2023, https://arxiv.org/abs/2205.13452) found the *stability gap*: old tasks fall right
    after a task switch, and recover. The measures are those of :mod:`ddn_lightning.metrics.anytime`. The images are a
    fixed, class-balanced choice among those that :class:`Forgetting` measures on, equal in all runs with one ``seed``.
    Training is the same with and without this callback, bit for bit; a resumed run has the same evaluations.

    A method is measured as it predicts at that moment: within a task iCaRL by its outputs and BiC without correction.

    Args:
        every_n_steps: Batches between two evaluations; ``None`` evaluates at task ends only. The command leaves the
            callback out then.
        images: Maximum number of images, of all tasks together: equally many of each class in each task.
        seed: Seed of the choice of images. It is not the run's: runs with different seeds are measured on the same.
        statistics: BatchNorm statistics: ``running``, or ``memory``, calibrated by a forward pass over the whole
            memory before each evaluation; ``None`` for those of the accuracy matrix.
        unseen_tasks: Whether to measure tasks before they are trained as well, and the untrained network, for forward
            transfer. Needs data whose classes come in several tasks.

    Example:
        >>> evaluation = ContinualEvaluation(every_n_steps=50)  # for Trainer(callbacks=[...])
        >>> evaluation.record.evaluations
        ()
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        images: int = 500,
        seed: int = 0,
        statistics: AnytimeStatistics | None = None,
        unseen_tasks: bool = False,
    ) -> None:
        check_positive(every_n_steps=1 if every_n_steps is None else every_n_steps, images=images)
        check_not_negative(seed=seed)
        if statistics is not None:
            check_choice(get_args(AnytimeStatistics), statistics=statistics)
        self.every_n_steps = every_n_steps
        self.images = images
        self.seed = seed
        self.statistics = statistics
        self.unseen_tasks = unseen_tasks
        self.seconds = 0.0  # spent on evaluations
        self._evaluations: tuple[Evaluation, ...] = ()
        self._samples_seen = 0
        self._chosen = torch.empty(0, dtype=torch.long)  # indices of the images
        self._subset: Samples | None = None  # the images, on the device
        self._from_step = 0  # after which it began
        self._num_tasks: int | None = None  # in a fit
        self._is_restored = False

    @classmethod
    def of(cls, trainer: Trainer) -> "ContinualEvaluation | None":
        """The Trainer's callback of this class, if any."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        return next((c for c in callbacks if isinstance(c, cls)), None)

    @property
    def record(self) -> AnytimeRecord:
        """The evaluations so far."""
        return AnytimeRecord(self._evaluations)

    def results(self, method: Watched) -> dict[str, Any]:
        """The measures, what they were measured on, and the cost, as JSON values."""
        record = self.record
        found = anytime_summary(record.accuracies, record.tasks) if record.evaluations else {}
        return {
            **{name: None if value.isnan() else round(float(value), 4) for name, value in found.items()},
            **self._options(),
            "statistics": self._statistics_of(method),
            "split": method.sequence.measured_on,
            "images": len(self._chosen),
            "evaluations": len(record.evaluations),
            "from_step": self._from_step,
            "seconds": round(self.seconds, 2),
        }

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the images and reset; a checkpoint is restored after this."""
        if stage != "fit":
            return
        sequence = method_of(pl_module).sequence
        if self.unseen_tasks and not _is_trained_before(sequence):
            raise ConfigurationError(
                "unseen_tasks must be false for data whose classes come in one task each: a class that was never "
                "trained is not predicted, so there is no forward transfer to measure"
            )
        samples = _measured(sequence)
        assert samples.tasks is not None
        self._chosen = balanced_subset(samples.labels, samples.tasks, self.images, self.seed)
        self._num_tasks = sequence.num_tasks
        self._evaluations, self._samples_seen, self.seconds, self._is_restored = (), 0, 0.0, False
        self._from_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the images to the device; they may be features by now."""
        method = method_of(pl_module)
        self._subset = _measured(method.sequence)[self._chosen].to(method.device)
        if self.statistics == "memory" and (obstacle := method.obstacle_to_calibration):
            note(f"the statistics of continual evaluation are running: {obstacle}")
        if not self._is_restored and (step := _batches_done(trainer)):
            self._from_step = step
            why = "the checkpoint was saved without it, or with fewer tasks"
            note(f"continual evaluation begins after step {step}: {why}")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Evaluate the untrained network, for forward transfer."""
        if self.unseen_tasks and _batches_done(trainer) == 0:
            self._evaluate(trainer, method_of(pl_module), UNTRAINED)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Samples, *_: object
    ) -> None:
        """Evaluate if it is time to, except at a task's end, which :meth:`on_task_measured` waits for."""
        self._samples_seen += batch.total
        is_due = self.every_n_steps is not None and _batches_done(trainer) % self.every_n_steps == 0
        method = method_of(pl_module)
        if is_due and not method.sequence.clock.at_task_end:
            self._evaluate(trainer, method, method.task)

    def on_task_measured(self, trainer: Trainer, method: Watched, task: int, table: dict[str, Tensor]) -> None:
        """Evaluate after the method's ``end_task``."""
        self._evaluate_end(trainer, method, task)

    def on_task_exit(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Evaluate the task's end if the Trainer does not, with ``limit_val_batches`` of 0."""
        self._evaluate_end(trainer, method, task)

    def state_dict(self) -> dict[str, Any]:
        """The options, which must not change, and the evaluations."""
        rows = self._evaluations
        return {
            "options": self._options(),
            "places": torch.tensor([[one.step, one.task, one.samples] for one in rows], dtype=torch.long).view(-1, 3),
            "accuracies": self.record.accuracies,
            "samples_seen": self._samples_seen,
            "seconds": self.seconds,
            "from_step": self._from_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the evaluations; refuse those with other options, which could not be compared."""
        saved = state_dict["options"]
        for name, value in self._options().items():
            if saved[name] != value:
                raise ConfigurationError(
                    f"{name} of continual evaluation must be that of the checkpoint, {saved[name]}, got {value}"
                )
        both = zip(state_dict["places"].tolist(), state_dict["accuracies"].tolist(), strict=True)
        rows = [Evaluation(step, task, samples, tuple(row)) for (step, task, samples), row in both]
        self._samples_seen = state_dict["samples_seen"]
        if rows and len(rows[0].accuracies) != (self._num_tasks or len(rows[0].accuracies)):
            return  # of a run that goes on with further tasks, for which other images are chosen
        self._evaluations = tuple(rows)
        self._from_step, self.seconds = state_dict["from_step"], state_dict["seconds"]
        self._is_restored = True

    def _options(self) -> dict[str, Any]:
        names = ("every_n_steps", "images", "seed", "statistics", "unseen_tasks")
        return {name: getattr(self, name) for name in names}

    def _evaluate_end(self, trainer: Trainer, method: Watched, task: int) -> None:
        step = _batches_done(trainer)
        if not self._evaluations or self._evaluations[-1].step < step:
            self._evaluate(trainer, method, task)

    def _evaluate(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Measure, record and log the accuracies at this moment of a task."""
        started = time.monotonic()
        assert self._subset is not None
        assert self._subset.tasks is not None
        num_tasks = method.sequence.num_tasks
        last = num_tasks - 1 if self.unseen_tasks else task
        totals = self._subset.tasks.bincount(minlength=num_tasks).tolist()
        with isolate_rng():
            method.before_evaluation()
        with isolate_rng(), self._with_statistics(method), evaluating(method):
            hits = self._hits(trainer, method, last).tolist()
        row = [
            100 * h / n if number <= last else math.nan for number, (h, n) in enumerate(zip(hits, totals, strict=True))
        ]
        step = _batches_done(trainer)
        found = Evaluation(step, task, self._samples_seen, tuple(row))
        self._evaluations = (*self._evaluations, found)
        self.seconds += time.monotonic() - started
        values = {f"anytime/accuracy/task_{n + 1}": value for n, value in enumerate(row) if value == value}
        if task != UNTRAINED:
            values["anytime/average_accuracy"] = found.average_accuracy
        for logger in trainer.loggers:  # not by log_dict, which drops values between two log_every_n_steps
            logger.log_metrics(values, step=max(step - 1, 0))

    def _hits(self, trainer: Trainer, method: Watched, last: int) -> Tensor:
        """Number of correct predictions of each task up to ``last``, over all ranks."""
        assert self._subset is not None
        assert self._subset.tasks is not None
        seen = (self._subset.tasks <= last).nonzero().squeeze(1)
        hits = torch.zeros(method.sequence.num_tasks, dtype=torch.long, device=method.device)
        for index, batch in enumerate(TaskLoader(self._subset, method.sequence.eval_batch_size, order=seen)):
            with trainer.precision_plugin.val_step_context():
                scores = method.validation_step(batch, index)
            assert batch.tasks is not None
            hits.index_add_(0, moved(batch.tasks, hits.device), (scores.argmax(dim=1) == batch.labels).long())
        return sum_across_ranks([hits])[0]

    @contextmanager
    def _with_statistics(self, method: Watched) -> Iterator[None]:
        """Use the statistics of this evaluation, whichever another callback uses at the moment."""
        with method.uncalibrated() as in_use:
            if self._statistics_of(method) == "running":
                yield
                return
            with method.calibrated(in_use or Forgetting.of(method.trainer).calibrated_buffers(method)):
                yield

    def _statistics_of(self, method: Watched) -> AnytimeStatistics:
        if method.obstacle_to_calibration:
            return "running"
        if self.statistics is not None:
            return self.statistics
        return "memory" if Forgetting.of(method.trainer).statistics == "memory" else "running"


def _measured(sequence: TaskSequence) -> Samples:
    """All images that a fit measures on."""
    return sequence.evaluation_loader(sequence.num_tasks).samples


def _batches_done(trainer: Trainer) -> int:
    """Batches trained on: ``global_step`` counts several for a batch with several optimizer steps."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return int(progress.processed)


def _is_trained_before(sequence: TaskSequence) -> bool:
    """Whether any task has a class that may come in an earlier one."""
    came = sequence.may_come.cumsum(dim=0)[:-1] > 0
    return bool((came & sequence.is_class_of_task[1:]).any())
