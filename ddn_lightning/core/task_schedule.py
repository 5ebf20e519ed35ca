"""A learning-rate schedule that restarts at each task."""

import copy
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddn_lightning.checkpoint.configured import options_of
from ddn_lightning.errors import ConfigurationError

LRSchedulerCallable = Callable[[Optimizer], LRScheduler]


class TaskSchedule:
    """A learning-rate schedule that restarts at each task.

    Args:
        build: Creates the scheduler of an optimizer.
    """

    def __init__(self, build: LRSchedulerCallable) -> None:
        self.build = build
        self.is_attached = False

    def attach(self, optimizer: Optimizer) -> LRScheduler:
        """Create the scheduler and store its initial state."""
        scheduler = self.build(optimizer)
        if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
            raise ConfigurationError(
                "lr_scheduler must create a scheduler of the optimizer that it is given, as in "
                f"partial(StepLR, step_size=10), got {type(scheduler).__name__}"
            )
        self.is_attached = True
        self._state: dict[str, Any] = copy.deepcopy(scheduler.state_dict())
        self._options = copy.deepcopy(options_of(optimizer))
        return scheduler

    def restart(self, trainer: Trainer) -> None:
        """Restore the initial state, and the optimizer's options: schedulers move ``lr``, some also ``betas``."""
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(copy.deepcopy(self._state))
        for group, options in zip(trainer.optimizers[0].param_groups, copy.deepcopy(self._options), strict=False):
            group.update(options)
