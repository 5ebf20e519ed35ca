"""A task learner with manual optimization: its optimizer, its schedule, and gradients summed over all ranks."""

import copy
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddn_lightning.distributed import average_batch_norm
from ddn_lightning.errors import ConfigurationError, check_fraction, check_momentum, check_not_negative, check_positive
from ddn_lightning.lightning_internals import batches_logged
from ddn_lightning.methods.calibrated_learner import CalibratedLearner
from ddn_lightning.optimization import gradient_of_sum
from ddn_lightning.replay_loss import ReplayLoss

# as in lightning.pytorch.cli, which is slow to import
OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]


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
        lr_scheduler_interval: Literal["epoch", "step"] = "epoch",
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_positive(lr=lr)
        check_not_negative(weight_decay=weight_decay, lr_milestones=min(lr_milestones, default=0))
        check_momentum(momentum=momentum)
        check_fraction(lr_decay=lr_decay)
        if gradient_clip_val is not None:
            check_positive(gradient_clip_val=gradient_clip_val)
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

    def descend(self, loss: ReplayLoss) -> Tensor:
        """Take one optimizer step; returns the loss over all ranks."""
        optimizer = self.classifier_optimizer
        if not self.has_own_optimizer:  # constructor arguments override restored optimizer state
            given = {"lr": self.current_lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
            optimizer.param_groups[0].update(given)  # further groups are added by callbacks
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        precision = self.trainer.precision_plugin
        precision.pre_backward(loss.total, self)  # calls on_before_backward of callbacks and method
        value, gradients = self.gradients(loss, parameters)
        average_batch_norm(self)
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        precision.post_backward(value, self)  # calls on_after_backward
        if self.gradient_clip_val is not None:
            clip = clip_grad_norm_ if self.gradient_clip_algorithm == "norm" else clip_grad_value_
            clip(parameters, self.gradient_clip_val)
        optimizer.step()
        return value

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of the loss over all ranks, for the optimizer step.

        Override to step in another direction, as A-GEM does, with :meth:`gradient_of` for single terms.
        """
        return self.gradient_of([lambda: loss.total, *loss.deferred_terms], parameters)

    def gradient_of(
        self, terms: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of a sum of terms over all ranks; ``None`` for parameters that no term depends on."""
        return gradient_of_sum(terms, parameters)

    def catch_up_schedulers(self) -> None:
        """Step the schedulers that count epochs up to the current epoch, also after a resume."""
        clock = self.sequence.clock
        epochs = clock.epoch if self.schedule is None else clock.epoch_in_task
        for config in self.trainer.lr_scheduler_configs:
            while config.interval == "epoch" and config.scheduler.last_epoch < epochs // config.frequency:
                self._step_scheduler(config)

    def step_schedulers(self) -> None:
        """Step the schedulers that count batches, which Lightning does not do in manual optimization."""
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "step" and (batches_logged(self.trainer) + 1) % config.frequency == 0:
                self._step_scheduler(config)

    def _step_scheduler(self, config: LRSchedulerConfig) -> None:
        metric = None
        if config.reduce_on_plateau:
            metrics = self.trainer.callback_metrics
            metric = metrics.get(config.monitor or "")
            if metric is None:
                raise ConfigurationError(
                    f"lr_scheduler must monitor a logged metric, got {config.monitor}; there are "
                    f"{', '.join(sorted(metrics)) or 'none yet'}"
                )
        self.lr_scheduler_step(config.scheduler, metric)

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
            classifier = self.build_optimizer(parameters)
        distilling = None if self.distiller is None else self.distiller.configure_optimizer()
        optimizers = [classifier] if distilling is None else [classifier, distilling]
        if self.schedule is None:
            return optimizers
        return optimizers, [{"scheduler": self.schedule.attach(classifier), "interval": self.lr_scheduler_interval}]

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the user has given an optimizer or a scheduler, by argument or by ``configure_optimizers``."""
        if self.build_optimizer is not None or self.schedule is not None:
            return True
        # not Lightning's is_overridden, which takes ten times as long: this is read eight times per step
        return getattr(self.configure_optimizers, "__func__", None) is not OptimizedLearner.configure_optimizers

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
    def distiller_optimizer(self) -> Optimizer:
        """The distiller's optimizer, unwrapped: its steps must not count towards ``global_step``."""
        optimizers = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizers, list)
        return optimizers[1]


class TaskSchedule:
    """A learning-rate schedule that restarts at each task.

    Args:
        build: Creates the scheduler of an optimizer.
    """

    def __init__(self, build: LRSchedulerCallable) -> None:
        self.build = build

    def attach(self, optimizer: Optimizer) -> LRScheduler | ReduceLROnPlateau:
        """Create the scheduler and store its initial state."""
        scheduler = self.build(optimizer)
        self._initial: dict[str, Any] = copy.deepcopy(scheduler.state_dict())
        self._rates = [group["lr"] for group in optimizer.param_groups]
        return scheduler

    def restart(self, trainer: Trainer) -> None:
        """Restore the initial state and learning rates."""
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(copy.deepcopy(self._initial))
        for group, rate in zip(trainer.optimizers[0].param_groups, self._rates, strict=False):
            group["lr"] = rate
