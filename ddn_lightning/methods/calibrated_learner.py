"""A task learner whose BatchNorm statistics may be those of its memory, and who decides which batches move them."""

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from ddn_lightning.batch_statistics import (
    Buffers,
    even_batches,
    exchange,
    held_still,
    layers_put_to_rest,
    layers_with_statistics,
    measure,
)
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.checkpoint.weights import check_buffers
from ddn_lightning.distributed import take_from_first_rank
from ddn_lightning.lightning_internals import has_trainer
from ddn_lightning.methods.loading import CHECKPOINT_KEY
from ddn_lightning.methods.task_learner import TaskLearner
from ddn_lightning.samples import Samples

CALIBRATED, RUNNING = "calibrated_statistics", "running_statistics"
EXTRA_STATE = "_extra_state"  # torch's name in a state dict for what get_extra_state gives


class CalibratedLearner(TaskLearner, ABC):
    """Measures BatchNorm statistics on what it keeps, and takes them for evaluation while training has its own.

    Running statistics are a window over the last few batches, so that after a task old classes are normalised by those
    of the newest ones. *Calibrated* statistics are those of the stored samples, not augmented. Whether they are used is
    for :class:`Forgetting` to say. A checkpoint then has the running ones among its weights, to train on from, and the
    calibrated ones beside: whoever loads it for anything else than a fit gets these.

    Args:
        running_statistics: Which batches move the running statistics: ``all``, or ``memory``, those drawn from memory
            alone. A step that replays nothing moves them in any case. Methods that train on exemplars as if they were
            data have a single batch, and this has no effect.
        extra_draw_moves_statistics: Whether a draw besides the method's own, for soft labels or as their control, moves
            them too.
        **kwargs: Arguments of :class:`TaskLearner`.
    """

    def __init__(
        self,
        *args: Any,
        running_statistics: Literal["all", "memory"] = "all",
        extra_draw_moves_statistics: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.running_statistics = running_statistics
        self.extra_draw_moves_statistics = extra_draw_moves_statistics
        self.is_replaying = False  # whether memory takes part in the current step
        self.running_buffers: Buffers | None = None  # those of training, while the calibrated ones are in their place
        self._at_rest: set[str] = set()

    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """Logits of a batch in the loss, which moves the running statistics if it is to.

        Args:
            samples: The incoming batch or a draw from memory, augmented.
            is_extra: Whether it is a draw besides the method's own.
        """
        is_incoming = samples.slots is None
        if is_extra:
            is_moving = self.extra_draw_moves_statistics
        else:
            is_moving = self.running_statistics == "all" or not (is_incoming and self.is_replaying)
        with nullcontext() if is_moving else held_still(self):
            logits: Tensor = self(samples.images)
        return logits

    @property
    def obstacle_to_calibration(self) -> str | None:
        """Why there is nothing to calibrate, or nothing to calibrate with."""
        if not layers_with_statistics(self.backbone) and not layers_with_statistics(self.head):
            return f"{type(self.backbone).__name__} has no BatchNorm"
        return f"{type(self).__name__} keeps no samples" if self.stored_samples is None else None

    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """All that is different when the statistics are those of the stored samples; empty if there are not two.

        No random stream is touched, and every rank does the same.

        Args:
            batch_size: Samples per forward pass at most.
            class_balanced: Whether all classes count alike.
        """
        self._note_layers_at_rest()
        if self.obstacle_to_calibration or len(slots := self.calibration_slots()) < 2:
            return {}
        stored = self.stored_samples
        assert stored is not None
        labels = stored[slots].labels.cpu()
        chosen = (slots[batch] for batch in even_batches(labels, batch_size, class_balanced))
        batches = (self.normalised(stored[batch].images) for batch in chosen)
        context = self.trainer.precision_plugin.val_step_context()
        with torch.inference_mode(False), isolate_rng(), context:
            buffers = measure(self, self.class_scores, batches, leave_out=self._at_rest)
            take_from_first_rank(list(buffers.values()))
        return buffers

    def calibration_slots(self) -> Tensor:
        """Which stored samples calibrated statistics are those of, on the host: all."""
        return torch.empty(0, dtype=torch.long) if self.stored_samples is None else self.stored_samples.slots

    @contextmanager
    def calibrated(self, buffers: Buffers) -> Iterator[None]:
        """Predict with calibrated statistics for a while."""
        self._calibrate(buffers)
        try:
            yield
        finally:
            self._take_running()

    @contextmanager
    def uncalibrated(self) -> Iterator[Buffers]:
        """Predict with the running statistics for a while; gives those that were in their place, if any."""
        buffers = self._take_running()
        try:
            yield buffers
        finally:
            self._calibrate(buffers)

    def _calibrate(self, buffers: Buffers) -> None:
        if buffers:
            self.running_buffers = exchange(self, buffers)

    def _take_running(self) -> Buffers:
        buffers = {} if self.running_buffers is None else exchange(self, self.running_buffers)
        self.running_buffers = None
        return buffers

    def on_validation_model_eval(self) -> None:
        """Note which layers a user keeps in evaluation mode, before all of them are."""
        self._note_layers_at_rest()
        super().on_validation_model_eval()

    def on_test_model_eval(self) -> None:
        """The same."""
        self._note_layers_at_rest()
        super().on_test_model_eval()

    def _note_layers_at_rest(self) -> None:
        if self.training:
            self._at_rest = layers_put_to_rest(self)

    def on_train_end(self) -> None:
        """Leave a model with calibrated statistics, if they are what it was evaluated with."""
        super().on_train_end()
        if (measuring := self._measuring) is not None:
            self._calibrate(measuring.calibrated_buffers(self))

    @property
    def _measuring(self) -> Forgetting | None:
        """The callback that evaluates with calibrated statistics, if there is one."""
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        return next((c for c in callbacks if isinstance(c, Forgetting) and c.statistics != "running"), None)

    def get_extra_state(self) -> dict[str, Any]:
        """With the calibrated statistics among the weights, the running ones come along."""
        running = {} if self.running_buffers is None else {RUNNING: self.running_buffers}
        return {**super().get_extra_state(), **running}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Which statistics are among the weights."""
        super().set_extra_state(state)
        self.running_buffers = state.get(RUNNING)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Have the running statistics among the weights, whatever is in their place now, and the calibrated beside."""
        state = checkpoint["state_dict"]
        running = state[EXTRA_STATE].pop(RUNNING, {})
        calibrated = {name: state[name].clone() for name in running}
        state.update(running)
        super().on_save_checkpoint(checkpoint)
        if not calibrated and self._measuring is not None:
            calibrated = self._measuring.calibrated_buffers(self)
        if calibrated:
            checkpoint[CHECKPOINT_KEY][CALIBRATED] = calibrated

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the calibrated statistics of a checkpoint, unless it is to train on from."""
        super().on_load_checkpoint(checkpoint)
        is_fit = has_trainer(self) and self.trainer.state.fn == "fit"
        if CALIBRATED not in checkpoint[CHECKPOINT_KEY] or is_fit:
            return
        buffers = check_buffers(CALIBRATED, checkpoint[CHECKPOINT_KEY][CALIBRATED], dict(self.named_buffers()))
        state = checkpoint["state_dict"]
        running = {name: state[name] for name in buffers if name in state}
        state[EXTRA_STATE] = {**state[EXTRA_STATE], RUNNING: running}
        state.update(buffers)
