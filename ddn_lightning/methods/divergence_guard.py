"""Stops training when it diverges, without waiting for the device in each step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.distributed import rank_and_world_size
from ddn_lightning.errors import DivergenceError
from ddn_lightning.learner import Learner

MOST_NOTED = 1000  # losses that wait on the device to be looked at
STATISTICS = ("running_mean", "running_var")  # of BatchNorm


@dataclass(frozen=True)
class _Place:
    task: int
    step: int
    learning_rates: Mapping[str, float]

    def told(self, preposition: str) -> str:
        given = " and ".join(f"{name} {rate:g}" for name, rate in self.learning_rates.items())
        lower = " or ".join(f"--model.{name}" for name in self.learning_rates)
        return f"in task {self.task + 1} {preposition} step {self.step} with {given}: lower {lower}"


@dataclass(frozen=True)
class _NotedLoss:
    value: Tensor  # ()
    what: str
    place: _Place


class DivergenceGuard(Learner):
    """Notes losses on their device, and raises a :class:`DivergenceError` at the next look if one is not finite.

    To look is to wait for the device. It happens where that costs little: in steps that are logged, at an epoch's end,
    before and after the work at a task's end, before an evaluation, and whenever a checkpoint is about to be saved. The
    last three also look at the weights, so that none that is not finite is ever saved or measured. All ranks look at
    the same moments and agree.
    """

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[_NotedLoss] = []

    def note_loss(self, value: Tensor, what: str = "loss", **learning_rates: float) -> None:
        """Note a loss to be looked at later.

        Args:
            value: The loss, over all ranks.
            what: What to call it.
            **learning_rates: What to lower if it is not finite, by option; by default that of the training step.
        """
        place = _Place(self.task, self.trainer.global_step, learning_rates or {"lr": self.current_lr})
        # a copy, as it may be a part of a large tensor, which would be kept with it
        self._noted.append(_NotedLoss(value.detach().clone(), what, place))
        if len(self._noted) >= MOST_NOTED:
            self.look_at_losses()

    def look_at_losses(self) -> None:
        """Raise if any loss noted so far is not finite, naming the first."""
        noted, self._noted = self._noted, []
        if not noted:
            return
        first = _first_on_any_rank(~torch.stack([loss.value for loss in noted]).isfinite())
        if first is not None:
            value = float(noted[first].value)
            found = "not finite on another device" if math.isfinite(value) else value
            self._stop(f"{noted[first].what} became {found} {noted[first].place.told('at')}")

    def check_finite(self) -> None:
        """Raise if a loss, a weight, or what an optimizer keeps is not finite."""
        self.look_at_losses()
        names, tensors = zip(*self._learned(), strict=True)
        largest = [torch.linalg.vector_norm(tensor.detach(), torch.inf).to(self.device) for tensor in tensors]
        first = _first_on_any_rank(~torch.stack([value.isfinite() for value in largest]))
        if first is not None:
            place = _Place(self.task, self.trainer.global_step, {"lr": self.current_lr})
            self._stop(f"{names[first]} is not finite {place.told('after')}")

    def on_fit_start(self) -> None:
        """Losses of an earlier fit, which may have been broken off, do not count."""
        self._noted = []

    def on_validation_start(self) -> None:
        """Look before an evaluation."""
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.check_finite()

    def on_train_epoch_end(self) -> None:
        """Look at least once in an epoch."""
        self.look_at_losses()

    def on_train_end(self) -> None:
        """Look before training counts as done."""
        self.check_finite()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Never let a checkpoint that is good be replaced by one that is not."""
        if self.trainer.state.fn == "fit":
            self.check_finite()

    def _stop(self, reason: str) -> NoReturn:
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
            if isinstance(callback, TaskCallback):
                callback.on_divergence(self.trainer, self, reason)
        raise DivergenceError(reason)

    def _learned(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that a step may have spoilt. Buffers of a backbone may hold what they like."""
        yield from self.named_parameters()
        yield from ((name, buffer) for name, buffer in self.named_buffers() if name.endswith(STATISTICS))
        for optimizer in self.trainer.optimizers:
            for state in optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, Tensor) and value.is_floating_point():
                        yield f"{name} of {type(optimizer).__name__}", value


def _first_on_any_rank(is_bad: Tensor) -> int | None:
    """The first place that is true on any rank, the same for all."""
    number = len(is_bad)
    places = torch.arange(number, device=is_bad.device)
    first = torch.where(is_bad, places, number).min()
    _, world_size = rank_and_world_size()
    if world_size > 1:
        distributed.all_reduce(first, distributed.ReduceOp.MIN)
    found = int(first)
    return None if found == number else found
