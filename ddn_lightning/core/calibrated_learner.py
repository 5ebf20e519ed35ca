"""A task learner that chooses which batches update BatchNorm, and can calibrate its statistics on the memory."""

from abc import ABC
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Self

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from ddn_lightning.batch_statistics import (
    Buffers,
    frozen_layers,
    frozen_statistics,
    hold_statistics,
    is_frozen,
    layers_with_statistics,
    measure,
    stratified_batches,
    swap_buffers,
)
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.checkpoint.record import CHECKPOINT_KEY, table_of_contents
from ddn_lightning.checkpoint.weights import check_buffers
from ddn_lightning.core.task_learner import TaskLearner
from ddn_lightning.distributed import gather_shares, local_share, take_from_first_rank
from ddn_lightning.lightning_internals import has_trainer
from ddn_lightning.notes import note
from ddn_lightning.optimization import evaluating
from ddn_lightning.samples import Samples

CALIBRATED, RUNNING = "calibrated_statistics", "running_statistics"
EXTRA_STATE = "_extra_state"  # torch's key for get_extra_state in a state dict


class CalibratedLearner(TaskLearner, ABC):
    """Trains with running BatchNorm statistics and can be evaluated with calibrated ones.

    Running statistics average over the last few batches, so after a task old classes are normalised with the statistics
    of new ones. *Calibrated* statistics are measured on the stored samples, not augmented. :class:`Forgetting` decides
    whether they are used. A checkpoint then has the running statistics among its weights and the calibrated ones
    beside: a fit resumes with the former, every other use gets the latter. A backbone without trained parameters keeps
    its statistics.

    Args:
        running_statistics: Which batches update the running statistics: ``all``, or only those from ``memory``. A step
            without replay always updates them. No effect on methods that train on exemplars and data in one batch.
        extra_draw_moves_statistics: Whether draws in addition to the method's own, for a distiller or for
            ``old_memory_weight``, update them too.
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
        self.is_replaying = False  # whether the current step replays memory
        self.running_buffers: Buffers | None = None
        self._frozen_layers: set[str] = set()

    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """Logits of a batch in the loss.

        Args:
            samples: The incoming batch or a draw from memory, augmented.
            is_extra: Whether it is a draw in addition to the method's own.
        """
        with self.tracking(samples, is_extra):
            logits: Tensor = self(samples.images)
        return logits

    def tracking(self, samples: Samples, is_extra: bool = False) -> AbstractContextManager[None]:
        """Within it, forward passes of a batch update running statistics where ``running_statistics`` says so."""
        is_incoming = samples.slots is None
        if is_extra:
            is_updating = self.extra_draw_moves_statistics
        else:
            is_updating = self.running_statistics == "all" or not (is_incoming and self.is_replaying)
        return nullcontext() if is_updating else frozen_statistics(self)

    @property
    def obstacle_to_calibration(self) -> str | None:
        """Why BatchNorm statistics cannot be calibrated, or ``None`` if they can."""
        name = type(self.backbone).__name__
        if not layers_with_statistics(self.head):
            if not layers_with_statistics(self.backbone):
                return f"{name} has no BatchNorm"
            if is_frozen(self.backbone):
                return f"{name} is frozen, and so is its BatchNorm"
        return f"{type(self).__name__} keeps no samples" if self.stored_samples is None else None

    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """The buffers that change when statistics are calibrated on the stored samples; empty for fewer than two.

        Draws no random numbers; the result is the same on every rank.

        Args:
            batch_size: Maximum number of samples per forward pass.
            class_balanced: Whether all classes have equal weight.
        """
        self._find_frozen_layers()
        if self.obstacle_to_calibration or len(slots := self.calibration_slots()) < 2:
            return {}
        stored = self.stored_samples
        assert stored is not None
        labels = stored[slots].labels.cpu()
        chosen = (slots[batch] for batch in stratified_batches(labels, batch_size, class_balanced))
        batches = (self.normalised(stored[batch].images) for batch in chosen)
        context = self.trainer.precision_plugin.val_step_context()
        with torch.inference_mode(False), isolate_rng(), context:
            buffers = measure(self, self.class_scores, batches, exclude=self._frozen_layers)
            take_from_first_rank(list(buffers.values()))
        return buffers

    def calibration_slots(self) -> Tensor:
        """Slots of the stored samples to calibrate on, on the host: by default all."""
        return torch.empty(0, dtype=torch.long) if self.stored_samples is None else self.stored_samples.slots

    def features_of(self, samples: Samples) -> Tensor:
        """Features of samples in evaluation mode, not augmented."""
        return self.outputs_of(self.backbone, samples)

    def outputs_of(self, module: nn.Module, samples: Samples) -> Tensor:
        """Outputs of a module for samples in evaluation mode, not augmented; computed in shares and gathered."""
        parts = torch.split(local_share(samples.images), self.sequence.eval_batch_size)
        with evaluating(module):
            outputs = [module(self.normalised(part)) for part in parts]
        return gather_shares(torch.cat(outputs), len(samples))

    @contextmanager
    def calibrated(self, buffers: Buffers) -> Iterator[None]:
        """Use calibrated statistics within the context."""
        self._calibrate(buffers)
        try:
            yield
        finally:
            self._use_running()

    @contextmanager
    def uncalibrated(self) -> Iterator[Buffers]:
        """Use running statistics within the context; yields the calibrated ones that they replace."""
        buffers = self._use_running()
        try:
            yield buffers
        finally:
            self._calibrate(buffers)

    def _calibrate(self, buffers: Buffers) -> None:
        if buffers:
            self.running_buffers = swap_buffers(self, buffers)

    def _use_running(self) -> Buffers:
        buffers = {} if self.running_buffers is None else swap_buffers(self, self.running_buffers)
        self.running_buffers = None
        return buffers

    def train(self, mode: bool = True) -> Self:
        """Set the mode, except for the BatchNorm of a frozen backbone, which stays in evaluation mode."""
        super().train(mode)
        self._hold_frozen_backbone()
        return self

    def on_fit_start(self) -> None:
        """Keep the statistics of a frozen backbone: Lightning does not call :meth:`train` before a fit."""
        super().on_fit_start()
        self._hold_frozen_backbone()
        obstacle = self.obstacle_to_calibration
        if not self.memory_draws:
            obstacle = f"{type(self).__name__} does not replay memory"
        if self.running_statistics != "all" and obstacle:
            note(f"running_statistics={self.running_statistics} has no effect: {obstacle}")

    def on_validation_model_eval(self) -> None:
        """Find the layers that the user keeps in evaluation mode, before Lightning switches all of them."""
        self._find_frozen_layers()
        super().on_validation_model_eval()

    def on_test_model_eval(self) -> None:
        """As before a validation."""
        self._find_frozen_layers()
        super().on_test_model_eval()

    @property
    def backbones(self) -> list[nn.Module]:
        """The backbone, and copies of it that are in training mode with the method."""
        return [self.backbone]

    def _hold_frozen_backbone(self) -> None:
        if is_frozen(self.backbone):
            for backbone in self.backbones:
                hold_statistics(backbone)

    def _find_frozen_layers(self) -> None:
        if self.training:
            self._frozen_layers = frozen_layers(self)

    def on_train_end(self) -> None:
        """Keep the calibrated statistics, if the model was evaluated with them."""
        super().on_train_end()
        if (forgetting := self._calibrating_callback) is not None:
            self._calibrate(forgetting.calibrated_buffers(self))

    @property
    def _calibrating_callback(self) -> Forgetting | None:
        """The callback that evaluates with calibrated statistics, if any."""
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        return next((c for c in callbacks if isinstance(c, Forgetting) and c.statistics != "running"), None)

    def get_extra_state(self) -> dict[str, Any]:
        """Adds the running statistics, if the weights contain the calibrated ones."""
        running = {} if self.running_buffers is None else {RUNNING: self.running_buffers}
        return {**super().get_extra_state(), **running}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores progress and running statistics."""
        super().set_extra_state(state)
        self.running_buffers = state.get(RUNNING)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save running statistics among the weights, calibrated ones apart, and then the table of contents."""
        state = checkpoint["state_dict"]
        running = state[EXTRA_STATE].pop(RUNNING, {})
        calibrated = {name: state[name].clone() for name in running}
        state.update(running)
        super().on_save_checkpoint(checkpoint)
        if not calibrated and (forgetting := self._calibrating_callback) is not None:
            calibrated = forgetting.calibrated_buffers(self)
        if calibrated:
            checkpoint[CHECKPOINT_KEY][CALIBRATED] = calibrated
        checkpoint[CHECKPOINT_KEY]["contents"] = table_of_contents(checkpoint)  # last, to list everything

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the calibrated statistics, except to resume training."""
        super().on_load_checkpoint(checkpoint)
        is_fit = has_trainer(self) and self.trainer.state.fn == "fit"
        if CALIBRATED not in checkpoint[CHECKPOINT_KEY] or is_fit:
            return
        buffers = check_buffers(CALIBRATED, checkpoint[CHECKPOINT_KEY][CALIBRATED], dict(self.named_buffers()))
        state = checkpoint["state_dict"]
        running = {name: state[name] for name in buffers if name in state}
        state[EXTRA_STATE] = {**state[EXTRA_STATE], RUNNING: running}
        state.update(buffers)
