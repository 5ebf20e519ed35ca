"""The machine of all methods: the only training step in the package, and what each hook runs, in its order."""

from abc import ABC
from dataclasses import replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from ddn_lightning.callbacks.divergence_guard import DivergenceGuard
from ddn_lightning.callbacks.forgetting import calibration_of
from ddn_lightning.callbacks.task_callback import call_task_hook
from ddn_lightning.checkpoint.files import read_safely
from ddn_lightning.checkpoint.loops import begin_next_epoch
from ddn_lightning.core import checkpointing, growth
from ddn_lightning.core.batch_norm import BatchNormStatistics, RunningStatistics, hold_frozen
from ddn_lightning.core.buffer_bytes import initial_size, resolve_bytes
from ddn_lightning.core.default_callbacks import missing_callbacks, sort_memory_first
from ddn_lightning.core.feature_cache import serve_features
from ddn_lightning.core.method_base import MethodBase
from ddn_lightning.core.optimization import TaskOptimizer
from ddn_lightning.core.optimizer_checks import check_optimizers_of
from ddn_lightning.core.start_checks import check_parts, check_sequence, check_start, check_use, note_idle_statistics
from ddn_lightning.core.trainer_checks import check_trainer
from ddn_lightning.data.grown_sequence import GrownSequence
from ddn_lightning.data.image_transform import Given, ImageTransform
from ddn_lightning.data.progress import Progress
from ddn_lightning.data.rand_augment import RandAugment
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distill.term import HardLabelControl, Term
from ddn_lightning.distributed import average_batch_norm, gather_shares
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive, check_returned
from ddn_lightning.lightning_internals import drop_old_values, is_logged, is_resuming, restore_position
from ddn_lightning.memory.memory import Memory, sized
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.networks.backbone import Backbone, CompileMode
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.samples import Criterion, Samples

OBJECTS = ["backbone", "transform", "distiller", "memory", "optimizer", "lr_scheduler", "criterion", "rand_augment"]


class ReplayMethod(MethodBase, ABC):
    """Learns a task sequence while replaying samples from a memory.

    A method implements :meth:`loss` and, if its paper needs more, overrides :meth:`current_loss`, :meth:`stream`,
    :meth:`begin_task`, :meth:`end_task` or :meth:`class_scores`. This class draws and augments memory, steps the
    optimizer, and handles several devices and checkpoints. A loss takes logits from :meth:`logits_of` and averages with
    :meth:`Samples.mean`, so that gradients can be summed over devices.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The method adds the head.
        num_classes: Number of classes of the whole sequence, or more, for classes of later sequences. The command line
            takes it from the data.
        buffer_size: Number of samples in the memory, by default 200.
        buffer_bytes: Instead of ``buffer_size``, a budget for samples, logits and all that the method keeps except the
            network that predicts; the fit begins with as many samples as it has room for.
        memory: Which samples to keep: :class:`ReservoirBuffer` by default, :class:`ClassBalancedReservoir`,
            :class:`GradientSelection`, :class:`LossAwareReservoir`, :class:`RingBuffer` or a user's :class:`Memory`.
            Its own size, if given, overrides ``buffer_size``.
        replay_batch_size: Samples drawn from memory per step, over all devices.
        distiller: Makes soft labels for replayed samples, such as :class:`DataDistillNet`.
        old_memory_weight: Weight of an additional draw from the memory of earlier tasks, with hard labels: the control
            of equal rehearsal for a distiller. 0 disables the draw.
        replay_steps: Optimizer steps per incoming batch, each with new draws and augmentation: the control of equal
            cost.
        criterion: The loss on hard labels, from logits and labels to the loss of each sample, as a loss of torch with
            ``reduction="none"``; by default cross-entropy. All draws use it, also those of distillers and controls.
            The mean is over samples, weighted or not.
        rand_augment: Stronger augmentation of all training images, before the crop and flip of ``transform``.
        mask_unseen: Whether to predict only classes seen so far.
        transform: Augmentation and normalisation, by default the data module's; or your augmentation instead of crop
            and flip, as ``augment`` of :class:`ImageTransform`.
        running_statistics: Which batches update BatchNorm's running statistics: ``all``, or only those from ``memory``.
            A step without replay always updates them. No effect on methods that train on exemplars and data in one
            batch, and on a backbone without trained parameters.
        extra_draw_moves_statistics: Whether draws in addition to the method's own, for a distiller or for
            ``old_memory_weight``, update them too.
        compile: Whether to compile the backbone, or the mode of ``torch.compile``.
        evaluate_average: Decay of a moving average of weights and BatchNorm statistics that predicts in place of the
            network, as :class:`WeightAverage`; 0 for none. It does not change training.
        **kwargs: Arguments of :class:`TaskOptimizer`, such as ``lr``.

    Example:
        >>> from ddn_lightning import SmallNet, cross_entropy
        >>> class PlainReplay(ReplayMethod):
        ...     def loss(self, current, *memory):
        ...         (replayed,) = memory  # one draw, never empty
        ...         logits = self.logits_of(replayed)
        ...         loss = self.current_loss(current)
        ...         return replace(loss, rehearsal=cross_entropy(logits, replayed), memory_logits=logits)
        >>> PlainReplay(SmallNet(), num_classes=10, buffer_size=50).memory.buffer_size
        50
    """

    kwargs_of: ClassVar[type] = TaskOptimizer  # the part that gets the remaining arguments

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        buffer_size: int | None = None,
        replay_batch_size: int = 32,
        distiller: LabelDistiller | None = None,
        memory: Memory | None = None,
        old_memory_weight: float = 0.0,
        replay_steps: int = 1,
        criterion: Criterion | None = None,
        rand_augment: RandAugment | None = None,
        mask_unseen: bool = False,
        transform: Given = None,
        running_statistics: RunningStatistics = "all",
        extra_draw_moves_statistics: bool = True,
        compile: bool | CompileMode = False,  # noqa: A002  # torch's name
        buffer_bytes: int | None = None,
        evaluate_average: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone, num_classes, mask_unseen, transform, compile, evaluate_average)
        self.automatic_optimization = False
        self.save_hyperparameters(ignore=OBJECTS)
        check_positive(replay_batch_size=replay_batch_size, replay_steps=replay_steps)
        check_not_negative(old_memory_weight=old_memory_weight)
        check_parts(self, distiller, memory, rand_augment, criterion)
        check_use(type(self), distiller, memory, old_memory_weight)
        object.__setattr__(self, "criterion", criterion)  # no part of the network, also if it is a module
        self.replay_batch_size = replay_batch_size
        self.replay_steps = replay_steps
        self.rand_augment = rand_augment
        self.optimization = TaskOptimizer(**kwargs)
        self.batch_norm = BatchNormStatistics(running_statistics, extra_draw_moves_statistics)
        self.progress = Progress()
        self.streams = RandomStreams(seed=0)
        self.guard = DivergenceGuard()
        self.memory = ReservoirBuffer() if memory is None else memory
        buffer_size = initial_size(self, buffer_size, buffer_bytes)
        self.buffer_size = sized(self.memory, buffer_size, self.constructor_arguments, self.hparams)
        self.memory.is_taken = True
        self.distiller = distiller
        if distiller is not None:
            distiller.build(num_classes, self.buffer_size)
            distiller.is_taken = True
        controls = [HardLabelControl(old_memory_weight)] if old_memory_weight else []
        self.terms: tuple[Term, ...] = (*controls, *([] if distiller is None else [distiller]))
        self.resumed: checkpointing.Restored | None = None  # what the fit has restored
        self.register_load_state_dict_pre_hook(growth.grow_as_in_other_processes)  # type: ignore[no-untyped-call]

    # -- the step

    def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
        """Take ``replay_steps`` optimizer steps; returns loss and logits of the last for the callbacks."""
        clock = self.sequence.clock
        self.optimization.catch_up_schedulers(self, clock)
        for _ in range(self.replay_steps):
            value, loss = self.step(batch)
        if is_logged(self.trainer):  # not in each step: log() takes half a millisecond
            self.guard.check_losses(self)
            # on the host, since Lightning reads progress-bar values after every step
            self.log("train/loss", value.cpu(), prog_bar=True)
        self.optimization.step_schedulers(self, clock)
        return {"loss": value, "logits": loss.current_logits.detach()}

    def step(self, batch: Samples) -> tuple[Tensor, ReplayLoss]:
        """Take one optimizer step; returns the loss over all ranks, and its terms on this one."""
        current = self.augment(batch)
        for term in self.terms:
            term.before_step(self, current)
        memory = self.retrieve(current) if self.tasks_seen >= self.replay_from_task else []
        self.batch_norm.is_replaying = bool(memory)
        loss = self.loss(current, *memory) if memory else self.current_loss(current)
        check_returned(f"loss of {type(self).__name__}", loss, ReplayLoss)
        if memory and loss.rehearsed is None:
            loss = replace(loss, rehearsed=memory[-1])
        for term in self.terms:
            loss = term.add_to(loss, self, current)
        value = self.descend(loss)
        self.note_loss(value)
        self.after_step()
        if self.average is not None:
            self.average.update(self.network, self.trainer.global_step)
        for term in self.terms:
            term.update(self, current)
        return value, loss

    def descend(self, loss: ReplayLoss) -> Tensor:
        """Take one optimizer step; returns the loss over all ranks."""
        optimizer, parameters = self.classifier_optimizer, self.moved_parameters
        precision = self.trainer.precision_plugin
        if not self.has_own_optimizer:  # constructor arguments override restored optimizer state
            optimizer.param_groups[0].update(self.optimization.sgd_options(self.current_lr))  # callbacks add others
        precision.pre_backward(loss.total, self)  # calls on_before_backward of callbacks and method
        value, gradients = self.gradients(loss, parameters)
        average_batch_norm(self)
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        precision.post_backward(value, self)  # calls on_after_backward
        self.optimization.clip(parameters)
        optimizer.step()
        return value

    # -- Lightning's hooks, in the order of a fit

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks that the method needs and the user has not given. Lightning calls this hook first."""
        read_safely(self.trainer)
        if self.trainer.state.fn == "fit":
            check_trainer(self.trainer, self)
        elif not self.has_sequence:
            return []
        return [self.guard, *missing_callbacks(self.trainer, bool(self.memory_draws), bool(self.terms))]

    def setup(self, stage: str) -> None:
        """Check the data against the network; for a fit, reset all parts."""
        if self.transform is not None and (stage == "predict" or (stage != "fit" and not self.has_sequence)):
            return
        if stage != "fit" and not self.has_sequence:
            raise ConfigurationError(
                f"a new {type(self).__name__} does not know how to normalise images: evaluate a trained one, such as "
                "ddn_lightning.load(checkpoint)"
            )
        sequence, is_fit = self.sequence, stage == "fit"
        is_continued = is_fit and (is_resuming(self.trainer) or growth.is_continuation(self, sequence))
        check_sequence(self, sequence, may_grow=is_continued and isinstance(sequence, GrownSequence))
        if self.transform is None:
            self.transform = ImageTransform.of(*self.augmentation, sequence.transform)
        self.record_data_info(sequence.data_record())
        self.task_classes = [classes.tolist() for classes in sequence.task_classes]
        if is_fit:
            if not self.training:  # loaded to predict, or stopped within an evaluation
                self.return_to_training()
            self.resumed = None
            self.streams = RandomStreams(self.trainer.strategy.broadcast(torch.initial_seed()))  # seed_everything's
            self.progress.reset(sequence.num_tasks)
            self.optimization.reset()
            self.batch_norm.reset()
            resolve_bytes(self)
            if self.average is not None:
                self.average.restart(self.network)
            self.is_seen_class = torch.zeros_like(self.is_seen_class)
            self.memory.reset(self.buffer_size, seed=self.streams["memory"].initial_seed())
            for term in self.terms:
                term.begin_fit(self)
            sequence.serve_epochs(self.samples_of_epoch)
            sort_memory_first(self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check a checkpoint, and restore all parts. Lightning then restores weights, callbacks and loops."""
        self.resumed = checkpointing.restore(self, checkpoint)

    def on_fit_start(self) -> None:
        """Refuse what cannot be trained, before Lightning restores the optimizers."""
        hold_frozen(self.backbones)  # Lightning does not call train() before a fit
        note_idle_statistics(self)
        check_optimizers_of(self)
        self.optimization.configure(self.trainer)
        self._changes = checkpointing.resume_optimizers(self, self.resumed)
        if isinstance(self.criterion, nn.Module):
            self.criterion.to(self.device)
        serve_features(self)
        check_start(self)
        for term in self.terms:
            term.check(self)

    def on_train_start(self) -> None:
        """Resume in the next epoch if the last one was complete; say which arguments override the checkpoint's."""
        self.remember_modes()
        restore_position(self.trainer)
        begin_next_epoch(self.trainer)
        checkpointing.note_changes(self.trainer, self._changes)

    def samples_of_epoch(self, epoch: int) -> Samples:
        """The samples of an epoch, for the data. They may depend on the end of the task before, which is run first."""
        if 0 <= self.task < epoch // self.sequence.epochs_per_task:
            self._run_task_end()  # it is left to do after a resume at the task's last batch
        return self.stream(self.sequence, epoch)

    def on_train_batch_start(self, batch: Samples, batch_index: int) -> None:
        """Begin a new task. Lightning skips hooks between epochs after some resumes, but never this one."""
        task = self.sequence.clock.task
        if task != self.task:
            self._leave_task()
            self._run_task_begin(task)
        if not self.sequence.stream.tells_boundaries:
            self.is_seen_class[gather_shares(batch.labels, batch.total)] = True

    def on_train_batch_end(self, outputs: object, batch: Samples, batch_index: int) -> None:
        """End the task before its evaluation. A resume from a checkpoint of this batch, saved before, ends it, too."""
        drop_old_values(self.trainer)
        if self.sequence.clock.at_task_end:
            self._run_task_end()

    def on_train_end(self) -> None:
        """End the last task, unless training was stopped within it; keep calibrated statistics, if evaluated with."""
        clock = self.sequence.clock
        if clock.is_over(self.tasks_seen) and clock.is_last_batch:
            self._leave_task()
        if (evaluation := calibration_of(self.trainer)) is not None:
            self.batch_norm.use_calibrated(self, evaluation.calibrated_buffers(self))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what :mod:`ddn_lightning.core.checkpointing` lists."""
        checkpointing.save(self, checkpoint)

    # -- where a task begins and ends

    def _run_task_begin(self, task: int) -> None:
        for term in self.terms:
            term.begin_task(self.is_seen_class)
        self.optimization.restart(self.classifier_optimizer, self.trainer.lr_scheduler_configs)
        self.progress.begin(task)
        if self.sequence.stream.tells_boundaries:
            self.is_seen_class[self.sequence.is_class_of_task[task]] = True
        self.begin_task()

    def _run_task_end(self) -> None:
        """Run the work at a task's end, unless it is done."""
        if self.progress.is_between_tasks:
            return
        with self.progress.task_end():
            self.guard.check_finite(self)
            self.end_task()
            average_batch_norm(self)
            self.guard.check_finite(self)
            call_task_hook(self.trainer, "on_task_end", self, self.task)
            call_task_hook(self.trainer, "after_task_end", self, self.task)

    def _leave_task(self) -> None:
        """Run the work at a task's end, if it is left to do, and then the last hook of a task."""
        if self.task >= 0:
            self._run_task_end()
            call_task_hook(self.trainer, "on_task_exit", self, self.task)
