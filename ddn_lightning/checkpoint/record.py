"""Whose checkpoint it is, and its table of contents: every entry with its type and shape.

An entry that is gone is not always noticed otherwise: a random stream that is not there begins anew, and so does an
optimizer's momentum.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.loops import FORMAT
from ddn_lightning.errors import ConfigurationError

OF_SEQUENCE = ("name", "shuffle_seed", "task_classes", "epochs_per_task", "batch_size", "drop_last")
LEFT_OUT = ("loops", "pytorch-lightning_version")  # checked on their own; Lightning may migrate them to its version


def checked_record(record: object, method: str, num_classes: int) -> dict[str, Any]:
    """What a method has noted about itself and its data. Raise if it was another one, or for other data."""
    if record is None:
        raise ConfigurationError("this checkpoint was not written by a method of ddn_lightning")
    noted = checks.mapping("record", record, ("method", "num_classes", "streams", "sequence"))
    if noted["method"] != method:
        raise ConfigurationError(f"expected a checkpoint of {method}, got one of {noted['method']}")
    if noted["num_classes"] != num_classes:
        raise ConfigurationError(f"expected a checkpoint for {num_classes} classes, got one for {noted['num_classes']}")
    sequence = checks.mapping("record of the sequence", noted["sequence"], OF_SEQUENCE)
    checks.integer("seed of the data's order", sequence["shuffle_seed"], most=checks.LARGEST_SEED)
    return {**noted, "format": checks.integer("format", noted.get("format", 1), 1, FORMAT)}


def checked_progress(state: object, num_classes: int) -> tuple[int, int, int]:
    """The task being trained, counted from 0, and how many tasks have ended and epochs were evaluated.

    There are no more tasks than classes.
    """
    progress = checks.mapping("progress", state, ("task", "tasks_finished"))
    task = checks.integer("task", progress["task"], -1, num_classes - 1)
    ended = checks.integer("tasks_finished", progress["tasks_finished"], 0, task + 1)
    return task, ended, checks.integer("epochs_evaluated", progress.get("epochs_evaluated", 0))


def move_epochs_evaluated(checkpoint: dict[str, Any]) -> None:
    """Put the number of epochs evaluated where it is kept now: until format 2 the callback had it."""
    progress = checkpoint["state_dict"].get("_extra_state")
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(progress, dict) and isinstance(state, dict) and "epochs_evaluated" in state:
            checkpoint["state_dict"]["_extra_state"] = {"epochs_evaluated": state["epochs_evaluated"], **progress}


def table_of_contents(checkpoint: dict[str, Any]) -> dict[str, str]:
    """What is where.

    >>> import torch
    >>> table_of_contents({"epoch": 3, "state_dict": {"bias": torch.zeros(2)}, "callbacks": {}})
    {'epoch': 'int', 'state_dict/bias': 'float32 of shape (2,)', 'callbacks': 'a dict of 0'}
    """
    listed = {name: value for name, value in checkpoint.items() if name not in LEFT_OUT}
    return dict(_entries(listed, ""))


def check_contents(checkpoint: dict[str, Any], table: object) -> None:
    """Raise if an entry is missing, or is another thing than when the checkpoint was written."""
    found = table_of_contents(checkpoint)
    for path, form in checks.mapping("table of contents", table).items():
        if found.get(path) != form:
            raise ConfigurationError(
                f"the checkpoint has changed since it was written: {path} must be {form}, got "
                f"{found.get(path, 'nothing of that form')}"
            )


def _entries(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _entries(entry, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(e, Tensor | dict | list | tuple) for e in value):
        yield path, checks.described(value)
        for index, entry in enumerate(value):
            yield from _entries(entry, f"{path}/{index}")
    elif isinstance(value, list | tuple):
        kinds = " and ".join(sorted({type(entry).__name__ for entry in value}))
        yield path, f"{checks.described(value)} {kinds}".rstrip()
    elif isinstance(value, Tensor | dict):
        yield path, checks.described(value)
    else:
        yield path, type(value).__name__
