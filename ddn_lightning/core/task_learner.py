"""A classifier that follows a task sequence: begin and end of tasks, evaluation and checkpoints."""

from collections.abc import Callable
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from ddn_lightning.callbacks.divergence_guard import DivergenceGuard
from ddn_lightning.callbacks.task_callback import call_task_hook
from ddn_lightning.checkpoint.loops import FORMAT, begin_next_epoch, is_within_step, settle
from ddn_lightning.checkpoint.record import (
    CHECKPOINT_KEY,
    MODEL,
    TRANSFORM,
    check_contents,
    check_number_of_classes,
    checked_progress,
    checked_record,
    checked_test_accuracy,
    model_of,
)
from ddn_lightning.checkpoint.weights import check_weights, fit_matrices_to_checkpoint
from ddn_lightning.construction import construction_of, plain
from ddn_lightning.core.growing_learner import GrowingLearner, grow_as_in_other_processes
from ddn_lightning.core.start_checks import check_sequence
from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.data.grown_sequence import GrownSequence
from ddn_lightning.data.image_transform import Given, ImageTransform
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distributed import average_batch_norm, gather_shares
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.lightning_internals import (
    batches_fetched,
    drop_old_values,
    has_trainer,
    is_resuming,
    restore_position,
)
from ddn_lightning.metrics.accuracy_matrix import MATRICES
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.classifier import widened
from ddn_lightning.networks.compiled import compiled_in_place
from ddn_lightning.notes import note
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.samples import Samples


class TaskLearner(GrowingLearner):
    """Backbone and head with hooks for tasks: everything of a method except its training step.

    :meth:`begin_task` runs before a task's first batch. :meth:`end_task` runs after its last batch or, in a run that
    was killed and resumed there, before the next task. Both run exactly once per task, wherever a run is resumed.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The method adds the head.
        num_classes: Number of classes of the whole sequence, or more, for classes of later sequences. The command line
            takes it from the data.
        mask_unseen: Whether to predict only classes seen so far.
        transform: Augmentation and normalisation, by default the data module's; or your augmentation instead of crop
            and flip, as ``augment`` of :class:`ImageTransform`.
    """

    def __init__(
        self, backbone: Backbone, num_classes: int, mask_unseen: bool = False, transform: Given = None
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes)
        backbone = self.constructor_arguments["backbone"] = compiled_in_place(backbone)
        feature_dim = getattr(backbone, "feature_dim", None)
        if not isinstance(feature_dim, int):
            raise ConfigurationError(
                f"backbone must have an attribute feature_dim, the size of its output, but {type(backbone).__name__} "
                f"has {feature_dim!r}"
            )
        self.num_classes = num_classes
        self.mask_unseen = mask_unseen
        self.transform = transform if isinstance(transform, ImageTransform) else None
        self.augmentation = (None if self.transform else transform,)  # in a tuple, as a module would be a part
        self.backbone = backbone
        self.head = self.build_head(feature_dim)
        self.streams = RandomStreams(seed=0)
        self.guard = DivergenceGuard()
        self.task, self.tasks_finished, self.epochs_evaluated = -1, 0, 0
        self.test_accuracy = {}
        self.register_buffer("is_seen_class", torch.zeros(num_classes, dtype=torch.bool))
        for name in MATRICES:
            # not empty: spawned processes cannot share empty tensors
            self.register_buffer(name, torch.full((1, 1), torch.nan, dtype=torch.float32))
        self.register_load_state_dict_pre_hook(fit_matrices_to_checkpoint)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(grow_as_in_other_processes)  # type: ignore[no-untyped-call]

    def build_head(self, feature_dim: int) -> nn.Module:
        """The layer from features to one logit per class."""
        return nn.Linear(feature_dim, self.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes) of normalised images; :meth:`predict` takes raw ones."""
        if images.dtype == torch.uint8:
            raise ConfigurationError(
                "a call of the method takes normalised images, got uint8: call method.predict(images), or "
                "method(method.normalised(images)) for logits"
            )
        return widened(self.head(self.backbone(images)))

    def begin_task(self) -> None:
        """Hook before a task's first batch. ``self.task`` is the new task."""

    def end_task(self) -> None:
        """Hook after a task's last batch and before its evaluation, with gradients enabled.

        A run that is killed in this hook resumes from the state before it and runs it again. The network computes in
        single precision here, unless called in ``self.trainer.precision_plugin.train_step_context()``.
        """

    def class_scores(self, images: Tensor) -> Tensor:
        """The scores (batch, num_classes) whose maximum is the prediction."""
        return self.masked(self(images))

    def masked(self, scores: Tensor) -> Tensor:
        """The scores with unseen classes masked, if ``mask_unseen``."""
        return scores.masked_fill(~self.is_seen_class, torch.finfo(scores.dtype).min) if self.mask_unseen else scores

    @property
    def sequence(self) -> TaskSequence:
        """The data module."""
        sequence = getattr(self.trainer, "datamodule", None)
        if not isinstance(sequence, TaskSequence):
            raise ConfigurationError(
                f"{type(self).__name__} needs a TaskSequence such as SplitDigits for its datamodule, got {sequence!r}"
            )
        return sequence

    def note_loss(self, value: Tensor, name: str = "loss", **learning_rates: float) -> None:
        """Queue a loss for the next check of the guard, which stops training on NaN or infinity.

        Args:
            value: The loss over all ranks.
            name: Its name in the error message.
            **learning_rates: Options to lower if it is not finite; by default ``lr``.
        """
        rates = learning_rates or {"lr": self.current_lr}
        self.guard.note(value, name, (self.task, self.trainer.global_step), rates)
        if self.guard.is_full:
            self.guard.check_losses(self)

    def samples_of_epoch(self, sequence: TaskSequence, epoch: int) -> Samples:
        """The training samples of an epoch. Ends the previous task first, if the run was resumed at its last batch."""
        if 0 <= self.task < epoch // sequence.epochs_per_task:
            self._run_task_end()
        return self.stream(sequence, epoch)

    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """The training samples of an epoch: by default the data of its task."""
        return sequence.training_samples(epoch // sequence.epochs_per_task)

    def setup(self, stage: str) -> None:
        """Check the data against the network; for a fit, reset progress and random streams."""
        if stage == "predict" and self.transform is not None:
            return
        is_going_on = stage == "fit" and (is_resuming(self.trainer) or self.goes_on())
        sequence = self.sequence
        check_sequence(self, sequence, may_grow=is_going_on and isinstance(sequence, GrownSequence))
        if self.transform is None:
            self.transform = ImageTransform.of(*self.augmentation, sequence.transform)
        self.take_names_and_shape(sequence.data_record())
        self.task_classes = [classes.tolist() for classes in sequence.task_classes]
        if stage == "fit":
            if not self.training:  # loaded to predict, or stopped within an evaluation
                self.return_to_training()
            self.is_unfinished = False
            self.streams = RandomStreams(self.trainer.strategy.broadcast(torch.initial_seed()))  # seed_everything's
            self.task, self.tasks_finished, self.epochs_evaluated = -1, 0, 0
            self.test_accuracy = {}
            self.is_seen_class = torch.zeros_like(self.is_seen_class)
            size = (sequence.num_tasks, sequence.num_tasks)
            for name in MATRICES:
                setattr(self, name, torch.full(size, torch.nan, device=self.device, dtype=torch.float32))

    def on_train_start(self) -> None:
        """Restore the position in the epoch; after a resume at its end, begin the next one."""
        self.remember_modes()
        restore_position(self.trainer)
        begin_next_epoch(self.trainer)

    def on_train_batch_start(self, batch: Samples, batch_index: int) -> None:
        """Begin a new task. Lightning skips hooks between epochs after some resumes, but never this one."""
        task = self.sequence.clock.task
        if task != self.task:
            self._run_task_exit()
            self._run_task_begin(task)
        if not self.sequence.stream.tells_boundaries:
            self.is_seen_class[gather_shares(batch.labels, batch.total)] = True

    def on_train_batch_end(self, outputs: object, batch: Samples, batch_index: int) -> None:
        """End the task before its evaluation. Checkpoints of this batch have been written already."""
        drop_old_values(self.trainer)
        if self.sequence.clock.at_task_end:
            self._run_task_end()

    def on_train_end(self) -> None:
        """End the last task, unless training was stopped within it."""
        super().on_train_end()
        clock = self.sequence.clock
        if clock.is_over(self.tasks_seen) and clock.is_last_batch:
            self._run_task_exit()

    def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a test batch, for the callbacks to measure."""
        return self.class_scores(self.normalised(batch.images))

    def to_torchscript(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse, and say how to export the network instead."""
        raise ConfigurationError(
            f"{type(self).__name__} cannot be turned into TorchScript as a whole: use method.export('model.pt2')"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and convert, but never reduce the precision of the accuracy matrices."""
        before = {name: matrix for name in MATRICES if not (matrix := getattr(self, name)).is_meta}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, matrix in before.items():
            applied = getattr(self, name)
            setattr(self, name, matrix.to(applied.device, torch.promote_types(matrix.dtype, applied.dtype)))
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Progress, as part of the weights: Lightning returns only these from forked processes."""
        progress = {"task": self.task, "tasks_finished": self.tasks_finished, "epochs_evaluated": self.epochs_evaluated}
        return {**progress, **({"test_accuracy": self.test_accuracy} if self.test_accuracy else {})}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore progress."""
        self.task, self.tasks_finished, self.epochs_evaluated = checked_progress(state)
        self.test_accuracy = checked_test_accuracy(state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the method's name, the loops and the random streams."""
        super().on_save_checkpoint(checkpoint)
        is_torn = self.is_unfinished or is_within_step(checkpoint)
        settle(checkpoint, fetched=batches_fetched(self.trainer))
        checkpoint[CHECKPOINT_KEY] = {
            "format": FORMAT,
            "method": type(self).__name__,
            "num_classes": self.num_classes,
            "streams": self.streams.state_dict(),
            "sequence": self.sequence.resume_state(),
            MODEL: construction_of(self),
            TRANSFORM: plain(self.transform),
            "within_step": is_torn,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse checkpoints of another method or number of classes, and damaged ones."""
        record = checked_record(checkpoint.get(CHECKPOINT_KEY), type(self).__name__)
        model_of(checkpoint)  # refuses one that does not say how its method was made
        tasks, data = record["sequence"]["task_classes"], record["sequence"]["data"]
        is_fit = has_trainer(self) and self.trainer.state.fn == "fit"
        self.is_growing, self.new_outputs = is_fit and self.sequence.continues(record["sequence"]), 0
        check_number_of_classes(record, self.num_classes, may_be_fewer=self.is_growing)
        self.streams.load_state_dict(record["streams"])
        if not self.is_growing:
            self.task_classes = tasks
            self.take_names_and_shape(DataRecord.from_plain(data))
        if not has_trainer(self):
            return
        if self.trainer.precision == "64-true":
            self.double()  # Lightning does this after it has restored the weights, which would round them
        if is_fit:
            check_contents(checkpoint, record["contents"])
        self.sequence.resume_from(record["sequence"])
        if self.is_growing:
            self.grow_from(checkpoint, record["num_classes"], len(tasks))
        check_weights(checkpoint.get("state_dict"), self.state_dict(), is_fit, self.strict_loading)
        if is_fit:
            self._check_training_state(checkpoint)
            settle(checkpoint)
            if record.get("within_step"):
                note("the checkpoint was saved within a step, as by an error: the run goes on, but not bit for bit")

    def _check_training_state(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume from an incomplete checkpoint, which Lightning would accept silently."""

    def _run_task_begin(self, task: int) -> None:
        self.task = task
        if self.sequence.stream.tells_boundaries:
            self.is_seen_class[self.sequence.is_class_of_task[task]] = True
        self.begin_task()

    def _run_task_end(self) -> None:
        """Run the hooks of a task's end, unless they have run."""
        if self.tasks_finished < self.tasks_seen:
            self.is_unfinished = True
            self.guard.check_finite(self)
            self.end_task()
            average_batch_norm(self)
            self.guard.check_finite(self)
            call_task_hook(self.trainer, "on_task_end", self, self.task)
            call_task_hook(self.trainer, "after_task_end", self, self.task)
            self.tasks_finished = self.tasks_seen
            self.is_unfinished = False

    def _run_task_exit(self) -> None:
        """Run the hooks of a task's end that have not run, and ``on_task_exit``, the last of a task."""
        if self.task >= 0:
            self._run_task_end()
            call_task_hook(self.trainer, "on_task_exit", self, self.task)
