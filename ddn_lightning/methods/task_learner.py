"""A classifier that follows a task sequence: the task clock, the evaluation, and what a checkpoint holds."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.checkpoint.checks import described
from ddn_lightning.checkpoint.loops import FORMAT, begin_next_epoch, settle
from ddn_lightning.checkpoint.record import (
    check_contents,
    checked_progress,
    checked_record,
    move_epochs_evaluated,
    table_of_contents,
)
from ddn_lightning.checkpoint.weights import check_weights, fit_matrices_to_checkpoint
from ddn_lightning.construction import construction_of, plain
from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distributed import average_batch_norm
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.lightning_internals import drop_old_values, has_trainer, is_resuming
from ddn_lightning.methods.divergence_guard import DivergenceGuard
from ddn_lightning.methods.loading import CHECKPOINT_KEY, MODEL, TRANSFORM
from ddn_lightning.methods.portable_learner import PortableLearner
from ddn_lightning.metrics.accuracy_matrix import MATRICES
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.optimization import evaluating
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.samples import Samples


class TaskLearner(DivergenceGuard, PortableLearner):
    """Backbone and head, told when a task begins and ends: everything of a method but its training step.

    A new task is noticed at its first batch, and an ended one right after its last batch or, if the run was killed and
    resumed there, before the next task. Both happen exactly once, whenever checkpoints are taken.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The method adds the head.
        num_classes: Number of classes of the whole sequence. The command line takes it from the data.
        mask_unseen: Whether predictions are limited to the classes seen so far.
        transform: Augmentation and normalisation; ``None`` takes the data module's.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        mask_unseen: bool = False,
        transform: ImageTransform | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes)
        feature_dim = getattr(backbone, "feature_dim", None)
        if not isinstance(feature_dim, int):
            raise ConfigurationError(
                f"backbone must have an attribute feature_dim, the size of its output, but {type(backbone).__name__} "
                f"has {feature_dim!r}"
            )
        self.num_classes = num_classes
        self.mask_unseen = mask_unseen
        self.transform = transform
        self.backbone = backbone
        self.head = self.build_head(feature_dim)
        self.streams = RandomStreams(seed=0)
        self.task = -1  # the task being trained, counted from 0
        self.tasks_finished = 0  # tasks whose end_task() is done
        self.epochs_evaluated = 0  # epochs up to and including the last one that was followed by an evaluation
        self.register_buffer("is_seen_class", torch.zeros(num_classes, dtype=torch.bool))
        for name in MATRICES:
            # not empty: spawned processes cannot share that
            self.register_buffer(name, torch.full((1, 1), torch.nan, dtype=torch.float32))
        self.register_load_state_dict_pre_hook(fit_matrices_to_checkpoint)  # type: ignore[no-untyped-call]

    def build_head(self, feature_dim: int) -> nn.Module:
        """The layer from features to one logit per class."""
        return nn.Linear(feature_dim, self.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes) of normalised images."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def begin_task(self) -> None:
        """Work before a task's first batch. ``self.task`` is the new task."""

    def end_task(self) -> None:
        """Work after a task's last batch and before its evaluation, with gradients enabled.

        A run that is killed in here comes back to the state before it, and does it again from the start.
        """

    def class_scores(self, images: Tensor) -> Tensor:
        """The scores (batch, num_classes) whose maximum is the prediction."""
        return self.masked(self(images))

    def masked(self, scores: Tensor) -> Tensor:
        """The scores without the classes not seen yet, if that is asked for."""
        return scores.masked_fill(~self.is_seen_class, torch.finfo(scores.dtype).min) if self.mask_unseen else scores

    @property
    def network(self) -> nn.Module:
        """Backbone and head as one module, without anything else that the method may have."""
        return nn.Sequential(OrderedDict(backbone=self.backbone, head=self.head))

    @property
    def sequence(self) -> TaskSequence:
        """The data module that says which task it is."""
        sequence = getattr(self.trainer, "datamodule", None)
        if not isinstance(sequence, TaskSequence):
            raise ConfigurationError(
                f"{type(self).__name__} needs a TaskSequence such as SplitDigits for its datamodule, got {sequence!r}"
            )
        return sequence

    def samples_of_epoch(self, sequence: TaskSequence, epoch: int) -> Samples:
        """What the data module serves in an epoch. A task before it that a resume has left unended is ended first."""
        if 0 <= self.task < epoch // sequence.epochs_per_task:
            self._finish_task()
        return self.stream(sequence, epoch)

    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """What to train on in an epoch: by default the data of its task."""
        return sequence.training_samples(epoch // sequence.epochs_per_task)

    def setup(self, stage: str) -> None:
        """Get to know the data; for a fit, start the clock and the random streams."""
        if stage == "fit" and self.tasks_seen and not is_resuming(self.trainer):
            raise ConfigurationError(
                f"this {type(self).__name__} has been trained already, up to task {self.tasks_seen}, and a fit begins "
                "with the first task: make a new method, or pass fit the ckpt_path to go on from"
            )
        if stage == "predict" and self.transform is not None:
            return
        sequence = self.sequence
        self._check_fits(sequence)
        if self.transform is None:
            self.transform = sequence.transform
        self.take_names_and_shape(sequence.data_record())
        if stage == "fit":
            self.streams = RandomStreams(self.trainer.strategy.broadcast(torch.initial_seed()))  # Lightning's seed
            self.task, self.tasks_finished, self.epochs_evaluated = -1, 0, 0
            self.is_seen_class = torch.zeros_like(self.is_seen_class)
            size = (sequence.num_tasks, sequence.num_tasks)
            for name in MATRICES:
                setattr(self, name, torch.full(size, torch.nan, device=self.device, dtype=torch.float32))

    def on_train_start(self) -> None:
        """After a resume at an epoch's end, begin the next epoch."""
        begin_next_epoch(self.trainer)

    def on_train_batch_start(self, batch: Samples, batch_index: int) -> None:
        """Notice a new task. Lightning skips hooks between epochs after some resumes, but never this one."""
        task = self.sequence.clock.task
        if task != self.task:
            self._leave_task()
            self._enter_task(task)

    def on_train_batch_end(self, outputs: object, batch: Samples, batch_index: int) -> None:
        """End the task before it is evaluated. Any checkpoint of this batch is written already."""
        drop_old_values(self.trainer)
        if self.sequence.clock.at_task_end:
            self._finish_task()

    def on_train_end(self) -> None:
        """Leave the last task, unless training was stopped within it."""
        super().on_train_end()
        clock = self.sequence.clock
        if clock.is_over(self.tasks_seen) and clock.is_last_batch:
            self._leave_task()

    def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a test batch, for the callbacks to measure."""
        assert self.transform is not None
        return self.class_scores(self.transform(batch.images).to(self.dtype))

    def test_step(self, batch: Samples, batch_index: int) -> Tensor:
        """The same as validation."""
        return self.validation_step(batch, batch_index)

    def to_torchscript(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a method is more than a network."""
        raise ConfigurationError(
            f"{type(self).__name__} cannot be turned into TorchScript as a whole: use torch.jit.trace(method.network, "
            "images) or torch.export.export(method.network, (images,)) on normalised images, in evaluation mode"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and convert; the matrices are measurements, whose precision never falls with that of the weights."""
        before = {name: matrix for name in MATRICES if not (matrix := getattr(self, name)).is_meta}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, matrix in before.items():
            applied = getattr(self, name)
            setattr(self, name, matrix.to(applied.device, torch.promote_types(matrix.dtype, applied.dtype)))
        return self

    def get_extra_state(self) -> dict[str, int]:
        """What has been done, as part of the weights: with them it comes back from forked processes."""
        return {"task": self.task, "tasks_finished": self.tasks_finished, "epochs_evaluated": self.epochs_evaluated}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """What has been done."""
        self.task, self.tasks_finished, self.epochs_evaluated = checked_progress(state, self.num_classes)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note whose checkpoint this is, and where the loops and the random streams are."""
        super().on_save_checkpoint(checkpoint)
        settle(checkpoint)
        checkpoint[CHECKPOINT_KEY] = {
            "format": FORMAT,
            "method": type(self).__name__,
            "num_classes": self.num_classes,
            "streams": self.streams.state_dict(),
            "sequence": self.sequence.resume_state(),
            MODEL: construction_of(self),
            TRANSFORM: plain(self.transform),
        }
        checkpoint[CHECKPOINT_KEY]["contents"] = table_of_contents(checkpoint)  # of what a fit goes on from

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse what another method saved, or one for another number of classes, and what cannot have been saved."""
        record = checked_record(checkpoint.get(CHECKPOINT_KEY), type(self).__name__, self.num_classes)
        self.streams.load_state_dict(record["streams"])
        if (data := record["sequence"].get("data")) is not None:  # version 0.1 did not note it
            self.take_names_and_shape(DataRecord.from_plain(data))
        if isinstance(checkpoint.get("state_dict"), dict):
            move_epochs_evaluated(checkpoint)
        if not has_trainer(self):
            return
        is_fit = self.trainer.state.fn == "fit"
        if is_fit:
            check_contents(checkpoint, record.get("contents", {}))  # those of format 1 have none
        self.sequence.resume_from(record["sequence"])
        check_weights(checkpoint.get("state_dict"), self.state_dict(), is_fit, self.strict_loading)
        if is_fit:
            self._check_training_state(checkpoint, record["format"])
            settle(checkpoint, record["format"])

    def store_row(self, task: int, matrices: Mapping[str, Tensor]) -> None:
        """Take a row of accuracies, measured after a task, into the matrices of these names."""
        for name, row in matrices.items():
            self.get_buffer(name)[task] = row

    def _check_training_state(self, checkpoint: dict[str, Any], checkpoint_format: int) -> None:
        """Refuse to train on from what is incomplete or implausible: Lightning would take it over and say nothing."""

    def _enter_task(self, task: int) -> None:
        self.task = task
        self.is_seen_class[self.sequence.task_classes[task]] = True
        self.begin_task()

    def _finish_task(self) -> None:
        if self.tasks_finished < self.tasks_seen:
            self.check_finite()
            self.end_task()
            average_batch_norm(self)
            self.check_finite()
            self._tell_callbacks("on_task_end")
            self._tell_callbacks("after_task_end")
            self.tasks_finished = self.tasks_seen

    def _leave_task(self) -> None:
        if self.task >= 0:
            self._finish_task()
            self._tell_callbacks("on_task_exit")

    def _tell_callbacks(self, hook: str) -> None:
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, TaskCallback):
                getattr(callback, hook)(self.trainer, self, self.task)

    def _check_fits(self, sequence: TaskSequence) -> None:
        if sequence.num_classes != self.num_classes:
            raise ConfigurationError(
                f"num_classes must be the {sequence.num_classes} of {type(sequence).__name__}, got {self.num_classes}"
            )
        shape = tuple(sequence.test_set.images.shape[1:])
        like = next(self.backbone.parameters(), torch.empty(0))
        try:
            with evaluating(self.backbone):
                features = self.backbone(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
        except RuntimeError as error:
            raise ConfigurationError(
                f"backbone must take the images of {type(sequence).__name__}, of shape {shape}, but "
                f"{type(self.backbone).__name__} does not: {error}"
            ) from error
        if not isinstance(features, Tensor) or features.shape != (1, self.backbone.feature_dim):
            raise ConfigurationError(
                f"backbone must give features of shape (batch, {self.backbone.feature_dim}), its feature_dim, but "
                f"{type(self.backbone).__name__} gives {described(features)}"
            )
