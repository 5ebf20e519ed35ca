"""Whose checkpoint it is."""

from typing import Any

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.loop_position import FORMAT
from ddn_lightning.errors import ConfigurationError

OF_SEQUENCE = ("name", "shuffle_seed", "task_classes", "epochs_per_task", "batch_size", "drop_last")


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


def checked_clock(state: object, num_classes: int) -> tuple[int, int]:
    """The task being trained, counted from 0, and how many have ended. There are no more tasks than classes."""
    clock = checks.mapping("task clock", state, ("task", "tasks_finished"))
    task = checks.integer("task", clock["task"], -1, num_classes - 1)
    return task, checks.integer("tasks_finished", clock["tasks_finished"], 0, task + 1)
