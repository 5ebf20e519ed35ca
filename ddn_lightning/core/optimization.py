"""The classifier's optimizer: SGD or the user's, restarted at each task, with a schedule that restarts too."""

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddn_lightning.checkpoint.optimizers import (
    CONFIGURED,
    Configured,
    check_optimizers,
    described_changes,
    options_of,
    take_given,
    unfreeze,
)
from ddn_lightning.core.optimizer_checks import check_creates, refused, steps_taken
from ddn_lightning.data.task_clock import TaskClock
from ddn_lightning.errors import (
    ConfigurationError,
    check_fraction,
    check_momentum,
    check_not_negative,
    check_positive,
)
from ddn_lightning.lightning_internals import batches_logged
from ddn_lightning.networks.gradients import ClipAlgorithm, clip_gradients

OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]  # as in lightning.pytorch.cli, which is slow to import
LRSchedulerCallable = Callable[[Optimizer], LRScheduler]
Interval = Literal["epoch", "step"]


class TaskOptimizer:
    """Optimizes the classifier by hand: by default SGD with a learning rate that decays at milestones in each task.

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
    """

    def __init__(
        self,
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
    ) -> None:
        check_positive(lr=lr)
        check_not_negative(weight_decay=weight_decay, lr_milestones=min(lr_milestones, default=0))
        check_momentum(momentum=momentum)
        check_fraction(lr_decay=lr_decay)
        if gradient_clip_val is not None:
            check_positive(gradient_clip_val=gradient_clip_val)
        check_creates("optimizer", optimizer, "of the parameters, such as AdamW or partial(AdamW, lr=0.001)")
        check_creates("lr_scheduler", lr_scheduler, "of the optimizer, such as partial(StepLR, step_size=10)")
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.lr_milestones = tuple(lr_milestones)
        self.lr_decay = lr_decay
        self.build_optimizer = optimizer
        self.build_scheduler = lr_scheduler
        self.lr_scheduler_interval = lr_scheduler_interval
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm: ClipAlgorithm = gradient_clip_algorithm
        self.reset()

    def reset(self) -> None:
        """Forget an earlier fit."""
        self.configured: Configured | None = None  # before training moved any value
        self.has_scheduler = False  # of its own
        self._is_schedule_new = False  # whether the schedulers must catch up with a resumed run
        self._initial: tuple[dict[str, Any], list[dict[str, Any]]] = ({}, [])  # of the scheduler, and its options

    @property
    def is_sgd(self) -> bool:
        """Whether the options of SGD apply, since no other optimizer or scheduler is given."""
        return self.build_optimizer is None and self.build_scheduler is None

    def build_all(self, method: Any) -> Any:
        """New optimizers of a method and of the terms of its loss, as ``configure_optimizers`` returns them."""
        learned = {parameter for term in method.terms for parameter in term.parameters()}
        classifier = self.build([p for p in method.parameters() if p.requires_grad and p not in learned])
        of_terms = [optimizer for term in method.terms if (optimizer := term.configure_optimizer()) is not None]
        schedulers = self.attach_scheduler(classifier)
        return ([classifier, *of_terms], schedulers) if schedulers else [classifier, *of_terms]

    def build(self, parameters: Sequence[Tensor]) -> Optimizer:
        """A new optimizer of these parameters."""
        if self.build_optimizer is None:
            return torch.optim.SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        with refused("optimizer"):
            built = self.build_optimizer(parameters)
        if not isinstance(built, Optimizer):
            raise ConfigurationError(f"optimizer must create an optimizer, got {type(built).__name__}")
        return built

    def attach_scheduler(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Create the scheduler, if one is given, as Lightning configures it; keep its initial state to restart."""
        if self.build_scheduler is None:
            return []
        with refused("lr_scheduler"):
            scheduler = self.build_scheduler(optimizer)
            if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
                raise ConfigurationError(
                    "lr_scheduler must create a scheduler of the optimizer that it is given, as in "
                    f"partial(StepLR, step_size=10), got {type(scheduler).__name__}"
                )
        self._initial = copy.deepcopy((scheduler.state_dict(), options_of(optimizer)))
        self.has_scheduler = True
        return [{"scheduler": scheduler, "interval": self.lr_scheduler_interval}]

    def restart(self, optimizer: Optimizer, schedulers: Sequence[LRSchedulerConfig]) -> None:
        """Forget the last task: momentum, and the schedule with the options that it has moved."""
        optimizer.state.clear()
        if self.has_scheduler:
            state, options = copy.deepcopy(self._initial)
            schedulers[0].scheduler.load_state_dict(state)
            for group, initial in zip(optimizer.param_groups, options, strict=False):
                group.update(initial)

    def sgd_lr(self, epoch_in_task: int) -> float:
        """The learning rate of SGD in an epoch of a task."""
        if not self.lr_milestones:
            return self.lr
        return self.lr * self.lr_decay ** sum(epoch_in_task >= milestone for milestone in self.lr_milestones)

    def sgd_options(self, lr: float) -> dict[str, float]:
        """Options of SGD that override those of a restored state."""
        return {"lr": lr, "momentum": self.momentum, "weight_decay": self.weight_decay}

    def clip(self, parameters: Sequence[Tensor]) -> None:
        """Limit the gradients, if a limit is given."""
        clip_gradients(parameters, self.gradient_clip_val, self.gradient_clip_algorithm)

    def catch_up_schedulers(self, method: LightningModule, clock: TaskClock) -> None:
        """Step the schedulers that count epochs up to the current epoch, also after a resume."""
        epochs = clock.epoch_in_task if self.has_scheduler else clock.epoch
        for config in method.trainer.lr_scheduler_configs:
            if config.interval == "epoch":
                steps = epochs // config.frequency - (steps_taken(config.scheduler) or 0)
            else:
                steps = self._batches_before(method.trainer, clock) // config.frequency if self._is_schedule_new else 0
            if steps > 0:
                with warnings.catch_warnings():  # no optimizer step precedes the first one of a resumed run
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                    _step_scheduler(method, config, clock, steps)
        self._is_schedule_new = False

    def step_schedulers(self, method: LightningModule, clock: TaskClock) -> None:
        """Step the schedulers that count batches, which Lightning does not do in manual optimization."""
        for config in method.trainer.lr_scheduler_configs:
            if config.interval == "step" and (batches_logged(method.trainer) + 1) % config.frequency == 0:
                _step_scheduler(method, config, clock)

    def _batches_before(self, trainer: Trainer, clock: TaskClock) -> int:
        """Batches before the current one that a schedule counts: of the task, if it restarts there."""
        if not self.has_scheduler:
            return batches_logged(trainer)
        return clock.epoch_in_task * int(trainer.num_training_batches) + trainer.fit_loop.epoch_loop.batch_idx

    def configure(self, trainer: Trainer) -> None:
        """Note what is configured, now that the optimizers exist and nothing has been restored."""
        self.configured = Configured.of(trainer.optimizers[0], trainer.lr_scheduler_configs)

    def resume(self, method: LightningModule, checkpoint: dict[str, Any], is_growing: bool) -> list[str]:
        """Let what is configured now replace what a checkpoint has; check the rest of its optimizer states.

        Args:
            method: The method, with its new optimizers.
            checkpoint: The checkpoint, which Lightning restores next.
            is_growing: Whether parameters may have grown since.

        Returns:
            What differs, for a note.
        """
        trainer, before = method.trainer, Configured(**checkpoint[CONFIGURED])
        assert self.configured is not None
        first, number = trainer.optimizers[0], len(before.groups)  # groups that callbacks add later are theirs
        self.configured = replace(self.configured, groups=self.configured.groups[:number])
        schedulers = trainer.lr_scheduler_configs
        self._is_schedule_new = take_given(checkpoint, trainer.optimizers, schedulers, self.configured, before)
        unfreeze(method, first.param_groups[number:])
        check_optimizers(checkpoint["optimizer_states"], trainer.optimizers, is_growing)
        return described_changes(self.configured, before)

    def state_dict(self) -> dict[str, Any]:
        """What was configured; Lightning saves the states of optimizer and scheduler."""
        return {} if self.configured is None else asdict(self.configured)


def _step_scheduler(method: LightningModule, config: LRSchedulerConfig, clock: TaskClock, steps: int = 1) -> None:
    scheduler: Any = config.scheduler
    try:
        for _ in range(steps):
            method.lr_scheduler_step(scheduler, None)
    except (ValueError, ZeroDivisionError) as error:
        name = type(scheduler).__name__
        raise ConfigurationError(f"{name} cannot step further in task {clock.task + 1}: {error}") from error
