"""Continue with further tasks and classes after a sequence has ended.

A method continues from the checkpoint of a finished run when its data is a :class:`GrownSequence` that follows it.
Where all outputs exist already, because the new tasks have no new classes or the first run had outputs to spare
(``num_classes`` above that of its data), two runs equal one run over all tasks bit for bit. Otherwise each part that
has a size for each class extends itself in :meth:`ReplayMethod.grow`.
"""

from typing import Any

import torch
from torch import nn

from ddn_lightning.checkpoint.checks import check_weights
from ddn_lightning.checkpoint.growth import overlaid
from ddn_lightning.checkpoint.record import BUFFER_SIZE, EXTRA_STATE, progress_in
from ddn_lightning.core.buffer_bytes import set_size
from ddn_lightning.data.grown_sequence import GrownSequence
from ddn_lightning.data.progress import Progress
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError, note
from ddn_lightning.lightning_internals import resume_from_file
from ddn_lightning.random_streams import generator_for


def is_continuation(method: Any, sequence: TaskSequence) -> bool:
    """Whether a loaded method continues with a sequence that follows; then its checkpoint is restored as a whole."""
    if not method.tasks_seen:
        return False
    if method.loaded_from is None or not isinstance(sequence, GrownSequence):
        raise ConfigurationError(
            f"this {type(method).__name__} has been trained already, up to task {method.tasks_seen}, and a fit begins "
            "with the first task: make a new method, pass ckpt_path to resume, or load the method and give it a "
            "sequence that continues, first.followed_by(more)"
        )
    resume_from_file(method.trainer, method.loaded_from)
    return True


def grow_head(head: nn.Module, method: Any) -> None:
    """Change the number of outputs of a head to the method's; new ones start as in a new head, by the run's seed."""
    generator = generator_for(method.streams.seed, f"head of {method.num_classes} classes")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        fresh = method.build_head(method.backbone.feature_dim).state_dict()
    for name, values in [*head.named_parameters(), *head.named_buffers()]:
        values.data = overlaid(values.detach(), fresh[name].to(values))  # in place, to keep the head's hooks
    if isinstance(head, nn.Linear):
        head.out_features = method.num_classes


def grow_checkpoint(method: Any, checkpoint: dict[str, Any], num_classes: int, num_tasks: int) -> int:
    """Replace the weights in the checkpoint of a finished run by those for all tasks to come.

    Args:
        method: The method that continues, with its data.
        checkpoint: The checkpoint.
        num_classes: Its number of classes.
        num_tasks: Its number of tasks.

    Returns:
        The number of outputs that the checkpoint does not have.
    """
    sequence = method.sequence
    if method.cannot_grow:
        raise ConfigurationError(f"{type(method).__name__} cannot go on with further tasks: {method.cannot_grow}")
    saved = Progress()
    saved.load_state_dict(progress_in(checkpoint))
    if saved.tasks_finished < num_tasks:
        raise ConfigurationError(
            f"only a finished run can go on with further tasks, but this checkpoint has learned {saved.tasks_finished} "
            f"of its {num_tasks} tasks: resume the run with its own data first"
        )
    outputs = max(method.num_classes, sequence.num_classes)
    if num_classes != method.num_classes:
        method.grow(num_classes)
    check_weights(checkpoint["state_dict"], method.state_dict(), is_strict=method.strict_loading)
    method.load_state_dict(checkpoint["state_dict"], strict=method.strict_loading)
    if outputs != method.num_classes:
        method.grow(outputs)
    method.progress.grow(sequence.num_tasks)
    checkpoint["state_dict"] = method.state_dict()
    new: int = outputs - num_classes
    note(f"continuing after task {num_tasks} of {sequence.num_tasks} with {new} new outputs")
    return new


def grow_as_in_other_processes(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Give a method the sizes of its copy in another process, which has grown, before it loads the weights."""
    method: Any = module
    size = state.get(f"{prefix}{EXTRA_STATE}", {}).get(BUFFER_SIZE)
    if size is not None and method.constructor_arguments.get("buffer_bytes") is not None:
        set_size(method, size)
    outputs = len(state.get(f"{prefix}is_seen_class", ()))
    if outputs > method.num_classes and method.loaded_from is not None:
        method.grow(outputs)
