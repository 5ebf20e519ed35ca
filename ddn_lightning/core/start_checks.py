"""Checks of a new method and at the start of a fit, for errors that would otherwise occur in the middle of it."""

import copy
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.checkpoint.checks import described
from ddn_lightning.checkpoint.construction import Constructed
from ddn_lightning.data.rand_augment import RandAugment
from ddn_lightning.data.streams.streams import Streams
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.errors import ConfigurationError, note
from ddn_lightning.memory.memory import Memory
from ddn_lightning.networks.frozen_features import check_holds_images, stored_form
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.samples import Criterion

TOO_FEW_VALUES = "Expected more than 1 value per channel"  # torch's message for BatchNorm over a single value

SINGLE_DRAW = (
    "replay_batch_size = {} of buffer_size = {} leaves a device one image of a draw, so small that the backbone's "
    "BatchNorm gets a single value: choose larger ones, or take larger images"
)


def check_parts(method: Any, distiller: object, memory: Any, rand_augment: object, criterion: Any) -> None:
    """Refuse arguments of a wrong kind, and parts of another method."""
    check_part(f"memory of {type(method).__name__}", memory, method.memory_class)
    check_part("distiller", distiller, LabelDistiller)
    check_part("rand_augment", rand_augment, RandAugment)
    if criterion is not None:
        check_criterion(criterion, method.num_classes)
    if memory is not None and memory.learning_rates:
        check_holds_images(method.backbone, type(memory).__name__)
    if rand_augment is not None:
        check_holds_images(method.backbone, "RandAugment", "changes")


def check_part(name: str, part: object, kind: type) -> None:
    """Refuse an object of another class, and a part of another method, with which it would share its state.

    Args:
        name: What it is, for messages.
        part: What was given for it, if anything.
        kind: The class that it must have.
    """
    if part is None:
        return
    if not isinstance(part, kind):
        given = f"a {type(part).__name__}" if isinstance(part, Constructed) else repr(part)
        raise ConfigurationError(f"{name} must be an object of class {kind.__name__}, got {given}")
    if getattr(part, "is_taken", False):
        raise ConfigurationError(f"{name} must be a new one, got the {type(part).__name__} of another method")


def check_criterion(criterion: Criterion, num_classes: int) -> None:
    """Refuse a criterion that does not give a loss for each sample."""
    try:
        losses = criterion(torch.zeros(2, num_classes), torch.zeros(2, dtype=torch.long))
    except RuntimeError as error:
        raise ConfigurationError(
            f"criterion must take logits of {num_classes} classes, but does not: {error}"
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != (2,):
        raise ConfigurationError(
            f'criterion must give a loss for each sample, as with reduction="none", got {described(losses)} for two'
        )


def check_use(method: Any, distiller: object, memory: object, old_memory_weight: float) -> None:
    """Refuse parts that a method has no use for."""
    useless = {
        "a distiller": distiller is not None and not method.takes_distiller(),
        "a memory": memory is not None and not method.memory_draws,
        f"old_memory_weight = {old_memory_weight}": bool(old_memory_weight) and not method.takes_distiller(),
    }
    reason = "it does not rehearse labels" if method.memory_draws else "it does not replay memory"
    if given := [name for name, is_useless in useless.items() if is_useless]:
        raise ConfigurationError(f"{method.__name__} cannot take {given[0]}: {reason}")


def check_sequence(method: Any, sequence: TaskSequence, may_grow: bool) -> None:
    """Refuse more classes than the method has, unless it may grow, and images that its backbone cannot take."""
    if sequence.num_classes > method.num_classes and not may_grow:
        raise ConfigurationError(
            f"num_classes must be the {sequence.num_classes} of {type(sequence).__name__}, or more, got "
            f"{method.num_classes}"
        )
    shape = sequence.image_shape
    like = next(method.backbone.parameters(), torch.empty(0))
    try:
        with evaluating(method.backbone):
            features = method.backbone(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    except RuntimeError as error:
        raise ConfigurationError(
            f"backbone must take the images of {type(sequence).__name__}, of shape {shape}, but "
            f"{type(method.backbone).__name__} does not: {error}"
        ) from error
    if not isinstance(features, Tensor) or features.shape != (1, method.backbone.feature_dim):
        raise ConfigurationError(
            f"backbone must give features of shape (batch, {method.backbone.feature_dim}), its feature_dim, but "
            f"{type(method.backbone).__name__} gives {described(features)}"
        )


def note_idle_statistics(method: Any) -> None:
    """Note that ``running_statistics`` changes nothing, where it does not."""
    obstacle = method.obstacle_to_calibration
    if not method.memory_draws:
        obstacle = f"{type(method).__name__} does not replay memory"
    chosen = method.batch_norm.running_statistics
    if chosen != "all" and obstacle:
        note(f"running_statistics={chosen} has no effect: {obstacle}")


def check_start(method: Any) -> None:
    """Refuse a stream that the method cannot learn, a memory without room, a task without a batch, and small batches.

    Looks at the number of samples of each task, and otherwise at the batches of the first epoch only.
    """
    if (obstacle := obstacle_to(type(method), method.sequence.stream)) is not None:
        raise ConfigurationError(obstacle)
    if isinstance(memory := method.stored_samples, Memory):
        form = stored_form(method.backbone, method.sequence.image_shape).images
        memory.check(method.num_classes, form.shape[1:])
        _check_room(memory.buffer_size, form, method.device)
    if method.sequence.drop_last:  # later tasks may be smaller
        for task in range(method.sequence.num_tasks):
            method.sequence.check_batch(
                task, len(method.stream(method.sequence, task * method.sequence.epochs_per_task))
            )
    if _smallest_share(method) <= 1:
        _check_single_image(method, single_image(method.sequence.batch_size))
    if isinstance(memory, Memory) and min(method.replay_batch_size, memory.buffer_size) < 2 * method.trainer.world_size:
        _check_single_image(method, SINGLE_DRAW.format(method.replay_batch_size, memory.buffer_size))


def obstacle_to(method: Any, streams: Streams) -> str | None:
    """Why a method cannot learn such a stream; ``None`` if it can."""
    if streams.has_disjoint_classes or not method.needs_disjoint_classes:
        return None
    kinds = [type(stream).__name__ for stream in streams if not stream.has_disjoint_classes] or ["this sequence"]
    reason = method.needs_disjoint_classes
    return f"{method.__name__} cannot learn {kinds[0]}, where a class comes in several tasks: {reason}"


def single_image(batch_size: int) -> str:
    """The message about a batch of one image."""
    return (
        f"batch_size = {batch_size} leaves a batch of one image, so small that the backbone's BatchNorm gets a single "
        "value: choose another batch_size, set drop_last to true, or take larger images"
    )


def _check_room(buffer_size: int, image: Tensor, device: torch.device) -> None:
    shape, number = tuple(image.shape[1:]), buffer_size * image.nbytes
    try:
        torch.empty(number, dtype=torch.uint8, device=device)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"buffer_size must fit into memory, got {buffer_size}: samples of shape {shape} take "
            f"{number / 2**30:,.0f} GiB"
        ) from error


def _smallest_share(method: Any) -> int:
    """Size of the smallest batch that a device is certain to get in the first epoch."""
    sequence, trainer = method.sequence, method.trainer
    samples = len(method.stream(sequence, 0))
    rest = samples % sequence.batch_size
    limit = trainer.limit_train_batches  # a fraction, or a number of batches
    is_whole = isinstance(limit, float) and limit == 1.0 and trainer.max_steps == -1  # else the last may never come
    smallest = rest if rest and is_whole and not sequence.drop_last else min(samples, sequence.batch_size)
    share: int = smallest // trainer.world_size
    return share


def _check_single_image(method: Any, message: str) -> None:
    shape = method.sequence.image_shape
    backbone = copy.deepcopy(method.backbone)  # the forward pass updates running statistics
    try:
        with torch.no_grad(), torch.random.fork_rng():
            backbone(torch.zeros(1, *shape, device=method.device).to(method.dtype))
    except ValueError as error:
        if TOO_FEW_VALUES in str(error):
            raise ConfigurationError(message) from error
        raise
