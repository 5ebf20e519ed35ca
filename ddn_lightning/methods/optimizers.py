"""The classifier's optimizer and schedule: the user's own, or SGD with decay at milestones."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ddn_lightning.errors import ConfigurationError

# as lightning.pytorch.cli has them, which is slow to import
OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]
ClipAlgorithm = Literal["norm", "value"]


def clip(parameters: Sequence[Tensor], limit: float | None, algorithm: ClipAlgorithm) -> None:
    """Limit gradients that are already those of all ranks: their norm together, or each element.

    >>> weight = torch.zeros(2)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip([weight], 1.0, "norm")
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    if limit is None:
        return
    if algorithm == "norm":
        torch.nn.utils.clip_grad_norm_(parameters, limit)
    else:
        torch.nn.utils.clip_grad_value_(parameters, limit)


def step_schedulers(method: LightningModule, batches: int) -> None:
    """Step the schedulers that count batches, as Lightning does in automatic optimization and leaves to us in manual.

    Args:
        method: The module, which has a Trainer.
        batches: Batches that have passed.
    """
    for config in method.trainer.lr_scheduler_configs:
        if config.interval == "step" and batches % config.frequency == 0:
            _step(method, config)


def bring_schedulers_to(method: LightningModule, epochs: int) -> None:
    """Step the schedulers that count epochs until they are where they belong, wherever training was stopped.

    Args:
        method: The module, which has a Trainer.
        epochs: Epochs that have passed.
    """
    for config in method.trainer.lr_scheduler_configs:
        while config.interval == "epoch" and config.scheduler.last_epoch < epochs // config.frequency:
            _step(method, config)


def _step(method: LightningModule, config: LRSchedulerConfig) -> None:
    metric = None
    if config.reduce_on_plateau:
        metric = method.trainer.callback_metrics.get(config.monitor or "")
        if metric is None:
            raise ConfigurationError(
                f"lr_scheduler must monitor a metric that is logged, got {config.monitor}; there are "
                f"{', '.join(sorted(method.trainer.callback_metrics)) or 'none yet'}"
            )
    method.lr_scheduler_step(config.scheduler, metric)


class TaskSchedule:
    """A schedule that begins anew with each task.

    Args:
        build: Makes the scheduler of an optimizer.
    """

    def __init__(self, build: LRSchedulerCallable) -> None:
        self.build = build

    def attach(self, optimizer: Optimizer) -> LRScheduler | ReduceLROnPlateau:
        """The scheduler, for a whole run."""
        scheduler = self.build(optimizer)
        self._start: dict[str, Any] = copy.deepcopy(scheduler.state_dict())
        self._rates = [group["lr"] for group in optimizer.param_groups]
        return scheduler

    def restart(self, trainer: Trainer) -> None:
        """Go back to where it began."""
        trainer.lr_scheduler_configs[0].scheduler.load_state_dict(copy.deepcopy(self._start))
        for group, rate in zip(trainer.optimizers[0].param_groups, self._rates, strict=False):
            group["lr"] = rate
