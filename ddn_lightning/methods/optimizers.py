"""The classifier's optimizer and schedule: the user's own, or SGD with decay at milestones."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

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


def step_schedulers(method: LightningModule, interval: Literal["step", "epoch"], count: int) -> None:
    """Step the schedulers of an interval, as Lightning does in automatic optimization and leaves to us in manual.

    Args:
        method: The module, which has a Trainer.
        interval: Which schedulers.
        count: Batches or epochs that have passed.
    """
    for config in method.trainer.lr_scheduler_configs:
        if config.interval == interval and count % config.frequency == 0:
            metric = method.trainer.callback_metrics.get(config.monitor or "") if config.reduce_on_plateau else None
            if metric is not None or not config.reduce_on_plateau:
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
