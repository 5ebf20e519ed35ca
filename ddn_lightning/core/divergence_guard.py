"""Stops training when it diverges, without synchronising with the device in each step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed

from ddn_lightning.batch_statistics import STATISTICS
from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.distributed import rank_and_world_size
from ddn_lightning.errors import DivergenceError
from ddn_lightning.learner import Learner

MAX_PENDING = 1000  # unchecked losses on the device


@dataclass(frozen=True)
class _PendingLoss:
    value: Tensor  # ()
    name: str
    task: int
    step: int
    learning_rates: Mapping[str, float]


class DivergenceGuard(Learner):
    """Collects losses on their device and raises a :class:`DivergenceError` at the next check if one is not finite.

    A check synchronises with the device. Losses are checked in logged steps, at the end of an epoch, before and after
    the work at a task's end, before an evaluation and before a checkpoint is saved. The last three also check the
    weights, so that weights that are not finite are never saved or measured. All ranks check at the same steps and
    agree on the result.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[_PendingLoss] = []

    def note_loss(self, value: Tensor, what: str = "loss", **learning_rates: float) -> None:
        """Queue a loss for the next check.

        Args:
            value: The loss over all ranks.
            what: Its name in the error message.
            **learning_rates: Options to lower if it is not finite; by default ``lr``.
        """
        rates = learning_rates or {"lr": self.current_lr}
        # a copy: a view would keep the whole tensor in memory
        self._pending.append(_PendingLoss(value.detach().clone(), what, self.task, self.trainer.global_step, rates))
        if len(self._pending) >= MAX_PENDING:
            self.check_losses()

    def check_losses(self) -> None:
        """Raise if any queued loss is not finite, naming the first."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        first = _first_on_any_rank(~torch.stack([loss.value for loss in pending]).isfinite())
        if first is not None:
            loss = pending[first]
            value = float(loss.value)
            found = "not finite on another device" if math.isfinite(value) else value
            self._stop(f"{loss.name} became {found}", loss.task, f"at step {loss.step}", loss.learning_rates)

    def check_finite(self) -> None:
        """Raise if a loss, a weight, or the state of an optimizer is not finite."""
        self.check_losses()
        names, tensors = zip(*self._learned_tensors(), strict=True)
        largest = [torch.linalg.vector_norm(tensor.detach(), torch.inf).to(self.device) for tensor in tensors]
        first = _first_on_any_rank(~torch.stack([value.isfinite() for value in largest]))
        if first is not None:
            step = f"after step {self.trainer.global_step}"
            self._stop(f"{names[first]} is not finite", self.task, step, {"lr": self.current_lr})

    def on_fit_start(self) -> None:
        """Discard the losses of an earlier fit that was interrupted."""
        super().on_fit_start()
        self._pending = []

    def on_validation_start(self) -> None:
        """Check before an evaluation."""
        super().on_validation_start()
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.check_finite()

    def on_train_epoch_end(self) -> None:
        """Check at least once per epoch."""
        super().on_train_epoch_end()
        self.check_losses()

    def on_train_end(self) -> None:
        """Check before training counts as complete."""
        super().on_train_end()
        self.check_finite()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Never replace a good checkpoint by one that is not finite."""
        super().on_save_checkpoint(checkpoint)
        if self.trainer.state.fn == "fit":
            self.check_finite()

    def _stop(self, finding: str, task: int, step: str, learning_rates: Mapping[str, float]) -> NoReturn:
        rates = " and ".join(f"{name} {rate:g}" for name, rate in learning_rates.items())
        options = " or ".join(f"--model.{name}" for name in learning_rates)
        reason = f"{finding} in task {task + 1} {step} with {rates}: lower {options}"
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
            if isinstance(callback, TaskCallback):
                callback.on_divergence(self.trainer, self, reason)
        raise DivergenceError(reason)

    def _learned_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that a step updates. Other buffers of a backbone may hold any values."""
        yield from self.named_parameters()
        yield from ((name, buffer) for name, buffer in self.named_buffers() if name.endswith(STATISTICS))
        for optimizer in self.trainer.optimizers:
            for state in optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, Tensor) and value.is_floating_point():
                        yield f"{name} of {type(optimizer).__name__}", value


def _first_on_any_rank(is_bad: Tensor) -> int | None:
    """The lowest index that is true on any rank, the same on all ranks."""
    number = len(is_bad)
    first = torch.where(is_bad, torch.arange(number, device=is_bad.device), number).min()
    if rank_and_world_size()[1] > 1:
        distributed.all_reduce(first, distributed.ReduceOp.MIN)
    found = int(first)
    return None if found == number else found
