"""BatchNorm's running statistics in training, and calibrated ones for predictions."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn

from ddn_lightning.distributed import take_from_first_rank
from ddn_lightning.networks.batch_statistics import (
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
from ddn_lightning.samples import Samples

RunningStatistics = Literal["all", "memory"]


class BatchNormStatistics:
    """Chooses which batches update BatchNorm's running statistics, and exchanges these for calibrated ones.

    Running statistics average over the last few batches, so after a task old classes are normalised with the statistics
    of new ones. *Calibrated* statistics are measured on the stored samples, not augmented. :class:`Forgetting` decides
    whether they are used.

    Args:
        running_statistics: Which batches update the running statistics: ``all``, or only those from ``memory``.
        extra_draw_moves_statistics: Whether draws in addition to the method's own update them too.
    """

    def __init__(self, running_statistics: RunningStatistics = "all", extra_draw_moves_statistics: bool = True) -> None:
        self.running_statistics: RunningStatistics = running_statistics
        self.extra_draw_moves_statistics = extra_draw_moves_statistics
        self.is_replaying = False  # whether the current step replays memory
        self.running: Buffers | None = None  # the running statistics, while the calibrated ones are in use
        self.frozen: set[str] = set()  # layers that the user keeps in evaluation mode

    def reset(self) -> None:
        """Forget an earlier fit."""
        self.is_replaying = False

    def tracking(self, module: nn.Module, samples: Samples, is_extra: bool = False) -> AbstractContextManager[None]:
        """Within it, forward passes of a batch update running statistics if they may."""
        is_incoming = samples.slots is None
        if is_extra:
            is_updating = self.extra_draw_moves_statistics
        else:
            is_updating = self.running_statistics == "all" or not (is_incoming and self.is_replaying)
        return nullcontext() if is_updating else frozen_statistics(module)

    def find_frozen(self, module: nn.Module) -> None:
        """Note the layers in evaluation mode, unless the whole module is."""
        if module.training:
            self.frozen = frozen_layers(module)

    def calibrate(self, method: Any, batch_size: int, class_balanced: bool) -> Buffers:
        """Measure statistics on a method's stored samples; empty for fewer than two. They are not used yet."""
        self.find_frozen(method)
        stored = method.stored_samples
        if method.obstacle_to_calibration or stored is None or len(slots := method.calibration_slots()) < 2:
            return {}
        batches = stratified_batches(stored[slots].labels.cpu(), batch_size, class_balanced)
        images = (method.normalised(stored[slots[batch]].images) for batch in batches)
        with torch.inference_mode(False), isolate_rng(), method.trainer.precision_plugin.val_step_context():
            buffers = measure(method, method.class_scores, images, exclude=self.frozen)
            take_from_first_rank(list(buffers.values()))
        return buffers

    def use_calibrated(self, module: nn.Module, buffers: Buffers) -> None:
        """Exchange the running statistics for calibrated ones, if there are any."""
        if buffers:
            self.running = swap_buffers(module, buffers)

    def use_running(self, module: nn.Module) -> Buffers:
        """Return to the running statistics; returns the calibrated ones that they replace."""
        buffers = {} if self.running is None else swap_buffers(module, self.running)
        self.running = None
        return buffers

    @contextmanager
    def calibrated(self, module: nn.Module, buffers: Buffers) -> Iterator[None]:
        """Use calibrated statistics within the context."""
        self.use_calibrated(module, buffers)
        try:
            yield
        finally:
            self.use_running(module)

    @contextmanager
    def uncalibrated(self, module: nn.Module) -> Iterator[Buffers]:
        """Use running statistics within the context; yields the calibrated ones that they replace."""
        buffers = self.use_running(module)
        try:
            yield buffers
        finally:
            self.use_calibrated(module, buffers)

    def state_dict(self) -> dict[str, Any]:
        """The running statistics, if the weights contain the calibrated ones."""
        return {} if self.running is None else dict(self.running)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the running statistics."""
        self.running = state or None


def hold_frozen(backbones: Iterable[nn.Module]) -> None:
    """Keep the BatchNorm of networks in evaluation mode, if the first of them has no trained parameter."""
    first, *others = backbones
    if is_frozen(first):
        for backbone in (first, *others):
            hold_statistics(backbone)


def obstacle_to_calibration(backbone: nn.Module, head: nn.Module) -> str | None:
    """Why the BatchNorm statistics of a network cannot be calibrated, or ``None`` if they can."""
    name = type(backbone).__name__
    if layers_with_statistics(head):
        return None
    if not layers_with_statistics(backbone):
        return f"{name} has no BatchNorm"
    return f"{name} is frozen, and so is its BatchNorm" if is_frozen(backbone) else None
