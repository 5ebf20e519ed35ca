"""Checks of what :class:`Replay` cannot work with, before training."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities.seed import isolate_rng
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor

from ddn_lightning.callbacks.task_accuracies import ScoresOf, checked_scores
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.memory.gradient_selection import GradientSelection
from ddn_lightning.memory.memory import Memory
from ddn_lightning.networks.gradients import evaluating

REFUSED: dict[type[Callback], str] = {
    BatchSizeFinder: "it would try batch sizes on the first task only: choose batch_size",
    EarlyStopping: "it would end the whole sequence before the later tasks: choose epochs_per_task",
    LearningRateFinder: "it would train on the first task and keep the weights: compare runs with different rates",
    StochasticWeightAveraging: "it replaces the weights after the last evaluation: use EMAWeightAveraging",
}


def check_fit(trainer: Trainer, module: LightningModule) -> TaskSequence:
    """Refuse modules, data, strategies and callbacks that cannot work; returns the data module."""
    name, sequence = type(module).__name__, getattr(trainer, "datamodule", None)
    if hasattr(type(module), "sequence"):
        raise ConfigurationError(f"Replay is for modules of your own, and {name} has a memory already: leave it out")
    if not isinstance(sequence, TaskSequence):
        raise ConfigurationError(f"Replay needs a TaskSequence such as SplitDigits as datamodule, got {sequence!r}")
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise ConfigurationError(f"training_step of {name} must take the batch instead of dataloader_iter")
    if trainer.strategy.restore_checkpoint_after_setup:  # as of all that shard: FSDP, DeepSpeed, model parallel
        raise ConfigurationError(
            f"strategy must be auto, ddp or another that keeps all weights on each device, got "
            f"{type(trainer.strategy).__name__}: Replay was not tried with shards"
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning does not declare it
        for kind, reason in REFUSED.items():
            if isinstance(callback, kind):
                raise ConfigurationError(f"callbacks must not contain {type(callback).__name__}: {reason}")
    if sequence.batch_size % trainer.world_size:
        raise ConfigurationError(
            f"batch_size must be a multiple of the {trainer.world_size} devices, whose gradients Lightning averages, "
            f"got {sequence.batch_size}"
        )
    return sequence


def check_module(module: LightningModule, scores: ScoresOf, image: Tensor, num_classes: int, memory: Memory) -> None:
    """Refuse a module that does not score a normalised image, or not all classes, or lacks what the memory uses."""
    try:
        with isolate_rng(), evaluating(module):
            checked_scores(scores(module, image), 1, num_classes)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"{type(module).__name__} must score normalised images of shape {tuple(image.shape)}, but does not: {error}"
        ) from error
    if isinstance(memory, GradientSelection):
        names = [name for name, _ in module.named_children()]
        if not {"backbone", "head"} <= set(names):
            raise ConfigurationError(
                f"GradientSelection compares gradients of the last layer: the module must have the parts backbone and "
                f"head, got {', '.join(names)}. Use another memory, such as ReservoirBuffer"
            )
