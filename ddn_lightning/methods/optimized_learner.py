"""A task learner that steps by hand: its optimizer, its schedule, and the gradient of all ranks."""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ddn_lightning.distributed import average_batch_norm, sum_across_ranks
from ddn_lightning.errors import check_fraction, check_momentum, check_not_negative, check_positive
from ddn_lightning.methods.calibrated_learner import CalibratedLearner
from ddn_lightning.methods.optimizers import (
    ClipAlgorithm,
    LRSchedulerCallable,
    OptimizerCallable,
    TaskSchedule,
    clip,
)
from ddn_lightning.optimization import gradient_of_sum
from ddn_lightning.replay_loss import ReplayLoss


class OptimizedLearner(CalibratedLearner, ABC):
    """Takes optimizer steps by hand: SGD by default, with a learning rate that decays at milestones of a task.

    Args:
        lr: Learning rate of SGD.
        momentum: Momentum of SGD, below 1; it starts anew with each task.
        weight_decay: Weight decay of SGD.
        lr_milestones: Epochs *within a task* at which the learning rate of SGD is multiplied by ``lr_decay``.
        lr_decay: See ``lr_milestones``; from 0 to 1.
        optimizer: Makes another optimizer than SGD; ``lr`` to ``lr_decay`` are then not used. Its state, such as Adam's
            moments, starts anew with each task.
        lr_scheduler: Makes a scheduler of the optimizer, stepped after each ``lr_scheduler_interval`` and begun anew
            with each task.
        lr_scheduler_interval: ``epoch`` or ``step``, an incoming batch.
        gradient_clip_val: Limit of the gradient, which the Trainer's option of that name cannot set in manual
            optimization.
        gradient_clip_algorithm: What it limits: the ``norm`` of all gradients, or each ``value``.
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
        """One SGD step; returns the loss over all ranks."""
        optimizer = self.classifier_optimizer
        if not self.has_own_optimizer:  # constructor arguments override restored optimizer state
            given = {"lr": self.current_lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
            optimizer.param_groups[0].update(given)  # any further group is a callback's
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        value, gradients = self.gradients(loss, parameters)
        average_batch_norm(self)
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        clip(parameters, self.gradient_clip_val, self.gradient_clip_algorithm)
        optimizer.step()
        return value

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of the loss over all ranks, by which the optimizer steps.

        Override it to step in another direction, as A-GEM does, by :meth:`gradient_of` one or more of its terms.
        """
        return self.gradient_of([lambda: loss.total, *loss.deferred_terms], parameters)

    def gradient_of(
        self, terms: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of a sum of terms over all ranks; ``None`` for parameters that none depends on."""
        # by hand instead of by DDP's hooks: exact for any number of losses and optimizers, and nothing to configure
        value, gradients = gradient_of_sum(terms, parameters)
        value, *summed = sum_across_ranks([value, *(g for g in gradients if g is not None)])
        found = iter(summed)
        return value, [None if gradient is None else next(found) for gradient in gradients]

    @property
    def current_lr(self) -> float:
        """The learning rate, decayed at each milestone of the current task; that of one's own optimizer as it is."""
        if self.has_own_optimizer:
            lr: float = self.classifier_optimizer.param_groups[0]["lr"]
            return lr
        if not self.lr_milestones:
            return self.lr
        epoch_in_task = self.sequence.clock.epoch_in_task
        return self.lr * self.lr_decay ** sum(epoch_in_task >= milestone for milestone in self.lr_milestones)

    def configure_optimizers(self) -> Any:
        """The classifier's optimizer, and the one that the distiller learns with.

        An override is taken as it is: ``lr``, ``momentum`` and ``weight_decay`` are not set on its optimizer, and its
        schedulers are stepped after the epochs or steps that it asks for, through all tasks.
        """
        learned = set() if self.distiller is None else set(self.distiller.parameters())
        parameters = [p for p in self.parameters() if p.requires_grad and p not in learned]
        own: torch.optim.Optimizer
        if self.build_optimizer is None:
            own = torch.optim.SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        else:
            own = self.build_optimizer(parameters)
        learning = None if self.distiller is None else self.distiller.configure_optimizer()
        optimizers = [own] if learning is None else [own, learning]
        if self.schedule is None:
            return optimizers
        return optimizers, [{"scheduler": self.schedule.attach(own), "interval": self.lr_scheduler_interval}]

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the optimizer or its schedule is not made of ``lr`` and the arguments after it."""
        if self.build_optimizer is not None or self.schedule is not None:
            return True
        # not Lightning's is_overridden, which takes ten times as long and would be called eight times in each step
        return getattr(self.configure_optimizers, "__func__", None) is not OptimizedLearner.configure_optimizers

    def _enter_task(self, task: int) -> None:
        self.classifier_optimizer.state.clear()  # momentum of the task before
        if self.schedule is not None:
            self.schedule.restart(self.trainer)
        super()._enter_task(task)

    @property
    def classifier_optimizer(self) -> torch.optim.Optimizer:
        """SGD, or one's own. Its steps are Lightning's ``global_step``."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer

    @property
    def distiller_optimizer(self) -> torch.optim.Optimizer:
        """The distiller's, not wrapped by Lightning: its steps are not to be counted a second time."""
        optimizers = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizers, list)
        return optimizers[1]
