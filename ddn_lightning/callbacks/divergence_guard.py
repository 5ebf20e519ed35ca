"""Stops training when it diverges, without synchronising with the device in each step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, distributed

from ddn_lightning.callbacks.task_callback import call_task_hook
from ddn_lightning.distill.learner import method_of
from ddn_lightning.distributed import rank_and_world_size
from ddn_lightning.errors import DivergenceError
from ddn_lightning.networks.batch_statistics import STATISTICS

MAX_PENDING = 1000  # unchecked losses on the device


@dataclass(frozen=True)
class _PendingLoss:
    value: Tensor  # ()
    name: str
    task: int
    step: int
    learning_rates: Mapping[str, float]


class DivergenceGuard(Callback):
    """Collects losses on their device and raises a :class:`DivergenceError` at the next check if one is not finite.

    A check synchronises with the device. Losses are checked in logged steps, at the end of an epoch, before and after
    the work at a task's end, before an evaluation and before a checkpoint is saved. The last three also check the
    weights, so that weights that are not finite are never saved or measured. All ranks check at the same steps and
    agree on the result.

    A method has its own guard, in ``method.guard``, and brings it to every fit. It calls the guard itself in logged
    steps and around the end of a task: the last task ends after :meth:`on_train_end` of the callbacks.
    """

    def __init__(self) -> None:
        self._pending: list[_PendingLoss] = []

    def note(self, value: Tensor, name: str, place: tuple[int, int], learning_rates: Mapping[str, float]) -> None:
        """Queue a loss for the next check.

        Args:
            value: The loss over all ranks.
            name: Its name in the error message.
            place: The task, counted from 0, and the step.
            learning_rates: Options to lower if it is not finite.
        """
        # a copy: a view would keep the whole tensor in memory
        self._pending.append(_PendingLoss(value.detach().clone(), name, *place, learning_rates))

    @property
    def is_full(self) -> bool:
        """Whether so many losses wait that they must be checked."""
        return len(self._pending) >= MAX_PENDING

    def check_losses(self, module: LightningModule) -> None:
        """Raise if any queued loss is not finite, naming the first."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        first = _first_on_any_rank(~torch.stack([loss.value for loss in pending]).isfinite())
        if first is not None:
            loss = pending[first]
            value = float(loss.value)
            found = "not finite on another device" if math.isfinite(value) else value
            _stop(module, f"{loss.name} became {found}", loss.task, f"at step {loss.step}", loss.learning_rates)

    def check_finite(self, module: LightningModule) -> None:
        """Raise if a loss, a weight, or the state of an optimizer is not finite."""
        self.check_losses(module)
        names, tensors = zip(*_learned_tensors(module), strict=True)
        largest = [torch.linalg.vector_norm(tensor.detach(), torch.inf).to(module.device) for tensor in tensors]
        first = _first_on_any_rank(~torch.stack([value.isfinite() for value in largest]))
        if first is not None:
            method, step = method_of(module), f"after step {module.trainer.global_step}"
            _stop(module, f"{names[first]} is not finite", method.task, step, {"lr": method.current_lr})

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Discard the losses of an earlier fit that was interrupted."""
        self._pending = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check before an evaluation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.check_finite(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check at least once per epoch."""
        self.check_losses(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check before training counts as complete."""
        self.check_finite(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Never replace a good checkpoint by one that is not finite."""
        if trainer.state.fn == "fit":
            self.check_finite(pl_module)


def _stop(module: LightningModule, finding: str, task: int, step: str, learning_rates: Mapping[str, float]) -> NoReturn:
    rates = " and ".join(f"{name} {rate:g}" for name, rate in learning_rates.items())
    options = " or ".join(f"--model.{name}" for name in learning_rates)
    reason = f"{finding} in task {task + 1} {step} with {rates}: lower {options}"
    call_task_hook(module.trainer, "on_divergence", method_of(module), reason)
    raise DivergenceError(reason)


def _learned_tensors(module: LightningModule) -> Iterator[tuple[str, Tensor]]:
    """Everything that a step updates. Other buffers of a backbone may hold any values."""
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name.endswith(STATISTICS))
    for optimizer in module.trainer.optimizers:
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
