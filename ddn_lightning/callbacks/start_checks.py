"""Finds out before training what would end it in the middle."""

import copy
import math
from collections.abc import Sequence

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.learner import Learner
from ddn_lightning.memory.memory import Memory

TOO_FEW_VALUES = "Expected more than 1 value per channel"  # what torch says of a BatchNorm over a single value


class StartChecks(Callback):
    """Refuses a memory that there is no room for, and a batch of one image that the backbone cannot normalise."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the memory and at the batches of the first epoch; those of later ones may depend on exemplars."""
        if not isinstance(pl_module, Learner):
            return
        if isinstance(memory := pl_module.stored_samples, Memory):
            _check_room(memory.buffer_size, pl_module.sequence.test_set.images.shape[1:], pl_module.device)
        if _smallest_share(trainer, pl_module) <= 1:
            _check_single_image(pl_module)


def _check_room(buffer_size: int, shape: Sequence[int], device: torch.device) -> None:
    number = buffer_size * math.prod(shape)
    try:
        torch.empty(number, dtype=torch.uint8, device=device)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"buffer_size must be a number of images that there is room for, got {buffer_size}: with {tuple(shape)} "
            f"bytes each they take {number / 2**30:,.0f} GiB"
        ) from error


def _smallest_share(trainer: Trainer, method: Learner) -> int:
    """Images of the smallest batch that a device is sure to get."""
    sequence = method.sequence
    samples = len(method.stream(sequence, 0))
    rest = samples % sequence.batch_size
    limit = trainer.limit_train_batches  # a part, or a number of batches
    is_whole = isinstance(limit, float) and limit == 1.0 and trainer.max_steps == -1  # else the last may never come
    smallest = rest if rest and is_whole and not sequence.drop_last else min(samples, sequence.batch_size)
    return smallest // trainer.world_size


def _check_single_image(method: Learner) -> None:
    shape = tuple(method.sequence.test_set.images.shape[1:])
    backbone = copy.deepcopy(method.backbone)  # whose running statistics may change
    try:
        with torch.no_grad(), torch.random.fork_rng():
            backbone(torch.zeros(1, *shape, device=method.device).to(method.dtype))
    except ValueError as error:
        if TOO_FEW_VALUES in str(error):
            raise ConfigurationError(single_image(method.sequence.batch_size)) from error
        raise


def single_image(batch_size: int) -> str:
    """What to do about a batch of one image."""
    return (
        f"batch_size = {batch_size} leaves a batch of one image, so small that the backbone's BatchNorm gets a single "
        "value: choose another batch_size, set drop_last to true, or take larger images"
    )
