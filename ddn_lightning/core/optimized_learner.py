"""A task learner with manual optimization: its optimizer, its schedule, and gradients summed over all ranks."""

import warnings
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.checkpoint.configured import CONFIGURED, Configured, described_changes
from ddn_lightning.checkpoint.optimizers import check_optimizers, take_given, unfreeze
from ddn_lightning.checkpoint.record import CHECKPOINT_KEY, TRANSFORM, model_of
from ddn_lightning.construction import changed_arguments, plain
from ddn_lightning.core.calibrated_learner import CalibratedLearner
from ddn_lightning.core.optimizer_checks import (
    check_creates,
    check_optimizer,
    check_schedulers,
    note_unused,
    refused,
    steps_taken,
)
from ddn_lightning.core.task_schedule import LRSchedulerCallable, TaskSchedule
from ddn_lightning.distributed import average_batch_norm
from ddn_lightning.errors import (
    ConfigurationError,
    check_fraction,
    check_momentum,
    check_not_negative,
    check_positive,
)
from ddn_lightning.lightning_internals import batches_logged, has_trainer
from ddn_lightning.notes import note
from ddn_lightning.optimization import ClipAlgorithm, clip_gradients, gradient_of_sum
from ddn_lightning.replay_loss import ReplayLoss

OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]  # as in lightning.pytorch.cli, which is slow to import
Interval = Literal["epoch", "step"]
OF_SGD = ("lr", "momentum", "weight_decay", "lr_decay")  # not used with another optimizer


class OptimizedLearner(CalibratedLearner, ABC):
    """Takes optimizer steps by hand: by default SGD with a learning rate that decays at milestones within each task.

    Args:
        lr: Learning rate of SGD.
        momentum: Momentum of SGD, below 1; reset at each task.
        weight_decay: Weight decay of SGD.
        lr_milestones: Epochs *within a task* at which the learning rate of SGD is multiplied by ``lr_decay``.
        lr_decay: See ``lr_milestones``; from 0 to 1.
        optimizer: Creates another optimizer than SGD; ``lr`` to ``lr_decay`` are then not used. Its state, such as
            Adam's moments, is reset at each task.
        lr_scheduler: Creates a scheduler for the optimizer. It steps after each ``lr_scheduler_interval`` and restarts
            at each task.
        lr_scheduler_interval: ``epoch``, or ``step`` for each incoming batch.
        gradient_clip_val: Limit for gradients. Replaces the Trainer's option, which has no effect in manual
            optimization.
        gradient_clip_algorithm: Whether to limit the ``norm`` of all gradients or each ``value``.
        **kwargs: Arguments of :class:`CalibratedLearner`.
    """

    def __init__(
        self,
        *args: Any,
        lr: float = 0.03,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        lr_milestones: Sequence[int] = (),
        lr_decay: float = 0.1,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_interval: Interval = "epoch",
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: ClipAlgorithm = "norm",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_positive(lr=lr)
        check_not_negative(weight_decay=weight_decay, lr_milestones=min(lr_milestones, default=0))
        check_momentum(momentum=momentum)
        check_fraction(lr_decay=lr_decay)
        if gradient_clip_val is not None:
            check_positive(gradient_clip_val=gradient_clip_val)
        check_creates("optimizer", optimizer, "of the parameters, such as AdamW or partial(AdamW, lr=0.001)")
        check_creates("lr_scheduler", lr_scheduler, "of the optimizer, such as partial(StepLR, step_size=10)")
        self.automatic_optimization = False
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.lr_milestones = tuple(lr_milestones)
        self.lr_decay = lr_decay
        self.build_optimizer = optimizer
        self.schedule = None if lr_scheduler is None else TaskSchedule(lr_scheduler)
        self.lr_scheduler_interval = lr_scheduler_interval
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm = gradient_clip_algorithm
        self.configured: Configured | None = None  # before training moved any value
        self._resumed_from: dict[str, Any] | None = None  # the checkpoint, until its optimizers are checked
        self._changes: list[str] = []  # to the checkpoint's arguments, until they are noted
        self._is_schedule_new = False  # whether the schedulers must catch up with a resumed run

    def descend(self, loss: ReplayLoss) -> Tensor:
        """Take one optimizer step; returns the loss over all ranks."""
        optimizer = self.classifier_optimizer
        if not self.has_own_optimizer:  # constructor arguments override restored optimizer state
            given = {"lr": self.current_lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
            optimizer.param_groups[0].update(given)  # further groups are added by callbacks
        parameters = self.moved_parameters
        precision = self.trainer.precision_plugin
        precision.pre_backward(loss.total, self)  # calls on_before_backward of callbacks and method
        value, gradients = self.gradients(loss, parameters)
        average_batch_norm(self)
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        precision.post_backward(value, self)  # calls on_after_backward
        clip_gradients(parameters, self.gradient_clip_val, self.gradient_clip_algorithm)
        optimizer.step()
        return value

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of the loss over all ranks, for the optimizer step.

        Override to step in another direction, as A-GEM does, with :meth:`gradient_of` for single terms.
        """
        return self.gradient_of([lambda: loss.total, *loss.deferred_terms], parameters)

    def gradient_of(
        self, terms: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor], retain_graph: bool = False
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of a sum of terms over all ranks; ``None`` for parameters that no term depends on.

        With ``retain_graph`` other terms of the same loss can be differentiated afterwards.
        """
        return gradient_of_sum(terms, parameters, retain_graph)

    def catch_up_schedulers(self) -> None:
        """Step the schedulers that count epochs up to the current epoch, also after a resume."""
        clock = self.sequence.clock
        epochs = clock.epoch if self.schedule is None else clock.epoch_in_task
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "epoch":
                steps = epochs // config.frequency - (steps_taken(config.scheduler) or 0)
            else:
                steps = self._batches_before // config.frequency if self._is_schedule_new else 0
            if steps > 0:
                with warnings.catch_warnings():  # no optimizer step precedes the first one of a resumed run
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                    self._step_scheduler(config.scheduler, steps)
        self._is_schedule_new = False

    @property
    def _batches_before(self) -> int:
        """Batches before the current one that a schedule counts: of the task, if it restarts there."""
        if self.schedule is None:
            return batches_logged(self.trainer)
        epochs, loop = self.sequence.clock.epoch_in_task, self.trainer.fit_loop.epoch_loop
        return epochs * int(self.trainer.num_training_batches) + loop.batch_idx

    def step_schedulers(self) -> None:
        """Step the schedulers that count batches, which Lightning does not do in manual optimization."""
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "step" and (batches_logged(self.trainer) + 1) % config.frequency == 0:
                self._step_scheduler(config.scheduler)

    def _step_scheduler(self, scheduler: LRScheduler, steps: int = 1) -> None:
        try:
            for _ in range(steps):
                self.lr_scheduler_step(scheduler, None)
        except (ValueError, ZeroDivisionError) as error:
            name = type(scheduler).__name__
            raise ConfigurationError(f"{name} cannot step further in task {self.task + 1}: {error}") from error

    @property
    def current_lr(self) -> float:
        """The learning rate of the current step."""
        if self.has_own_optimizer:
            lr: float = self.classifier_optimizer.param_groups[0]["lr"]
            return lr
        if not self.lr_milestones:
            return self.lr
        epoch_in_task = self.sequence.clock.epoch_in_task
        return self.lr * self.lr_decay ** sum(epoch_in_task >= milestone for milestone in self.lr_milestones)

    def configure_optimizers(self) -> Any:
        """The optimizers of the classifier and of the distiller.

        An override is used as it is: ``lr``, ``momentum`` and ``weight_decay`` are not applied to its optimizer, and
        its schedulers step after the epochs or steps that it asks for, without a restart at each task.
        """
        learned = set() if self.distiller is None else set(self.distiller.parameters())
        parameters = [p for p in self.parameters() if p.requires_grad and p not in learned]
        classifier: Optimizer
        if self.build_optimizer is None:
            classifier = torch.optim.SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        else:
            with refused("optimizer"):
                classifier = self.build_optimizer(parameters)
            if not isinstance(classifier, Optimizer):
                raise ConfigurationError(f"optimizer must create an optimizer, got {type(classifier).__name__}")
        distilling = None if self.distiller is None else self.distiller.configure_optimizer()
        optimizers = [classifier] if distilling is None else [classifier, distilling]
        if self.schedule is None:
            return optimizers
        with refused("lr_scheduler"):
            scheduler = self.schedule.attach(classifier)
        return optimizers, [{"scheduler": scheduler, "interval": self.lr_scheduler_interval}]

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the user has given an optimizer or a scheduler, by argument or by ``configure_optimizers``."""
        return self.build_optimizer is not None or self.schedule is not None or self.overrides_optimizers

    @property
    def overrides_optimizers(self) -> bool:
        """Whether the user has overridden ``configure_optimizers``."""
        # not Lightning's is_overridden, which takes ten times as long: this is read eight times per step
        return getattr(self.configure_optimizers, "__func__", None) is not OptimizedLearner.configure_optimizers

    def on_fit_start(self) -> None:
        """Check the optimizers and schedulers, now that they exist, before Lightning restores their states."""
        super().on_fit_start()
        trainer = self.trainer
        if self.schedule is not None and not self.schedule.is_attached:
            raise ConfigurationError("lr_scheduler must be left out where configure_optimizers returns its own")
        check_optimizer(self, self.lr_milestones if self.has_own_optimizer else ())
        check_schedulers(self, restarts=self.schedule is not None)
        if self.build_optimizer is not None:
            note_unused(self, OF_SGD)
        self.configured = Configured.of(trainer.optimizers[0], trainer.lr_scheduler_configs)
        checkpoint, self._resumed_from = self._resumed_from, None
        if checkpoint is not None:
            self._take_given(checkpoint, Configured.from_plain(checkpoint.get(CONFIGURED)))
            check_optimizers(checkpoint["optimizer_states"], trainer.optimizers, self.is_growing)
            self._changes = self._changes_since(checkpoint)

    def on_train_start(self) -> None:
        """Say which arguments override the checkpoint's, now that it is accepted; the command has its own note."""
        super().on_train_start()
        if self._changes and not any(isinstance(callback, RunRecord) for callback in self.trainer.callbacks):  # type: ignore[attr-defined]  # Lightning does not declare it
            note(f"resuming with other arguments than the checkpoint's: {', '.join(self._changes)}")
        self._changes = []

    def _take_given(self, checkpoint: dict[str, Any], before: Configured) -> None:
        """Let what is configured now replace what the checkpoint has; groups that callbacks add later are theirs."""
        optimizers, schedulers = self.trainer.optimizers, self.trainer.lr_scheduler_configs
        assert self.configured is not None
        self.configured = replace(self.configured, groups=self.configured.groups[: len(before.groups)])
        self._is_schedule_new = take_given(checkpoint, optimizers, schedulers, self.configured, before)
        unfreeze(self, optimizers[0].param_groups[len(before.groups) :])

    def _changes_since(self, checkpoint: dict[str, Any]) -> list[str]:
        """Arguments and options that differ from the checkpoint's."""
        assert self.configured is not None
        changed = changed_arguments(model_of(checkpoint), self)
        expected = ["num_classes=", "transform="] if self.is_growing else []
        if plain(self.transform) == checkpoint[CHECKPOINT_KEY].get(TRANSFORM):
            expected.append("transform=")  # a loaded method was given that which a new one takes from the data
        changes = [one for one in changed if not one.startswith(tuple(expected))]
        options = described_changes(self.configured, Configured.from_plain(checkpoint[CONFIGURED]))
        is_sgd = self.build_optimizer is None and not self.overrides_optimizers  # its options are arguments
        return changes + [change for change in options if not (is_sgd and change.startswith("optimizer."))]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what was configured, before the table of contents."""
        if self.configured is not None:
            checkpoint[CONFIGURED] = asdict(self.configured)
        super().on_save_checkpoint(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep a checkpoint that is resumed from until the optimizers exist."""
        super().on_load_checkpoint(checkpoint)
        if has_trainer(self) and self.trainer.state.fn == "fit":
            self._resumed_from = checkpoint

    def _run_task_begin(self, task: int) -> None:
        self.classifier_optimizer.state.clear()  # momentum of the previous task
        if self.schedule is not None:
            self.schedule.restart(self.trainer)
        super()._run_task_begin(task)

    @property
    def classifier_optimizer(self) -> Optimizer:
        """The classifier's optimizer, whose steps are Lightning's ``global_step``."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, Optimizer)
        return optimizer

    @property
    def moved_parameters(self) -> list[Tensor]:
        """The parameters that a step moves: those of the classifier's optimizer that require a gradient."""
        groups = self.classifier_optimizer.param_groups if has_trainer(self) else [{"params": self.parameters()}]
        return [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]

    @property
    def distiller_optimizer(self) -> Optimizer:
        """The distiller's optimizer, unwrapped: its steps must not count towards ``global_step``."""
        optimizers = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizers, list)
        return optimizers[1]
