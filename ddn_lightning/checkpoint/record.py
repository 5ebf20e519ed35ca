"""The method's record in a checkpoint, and the checkpoint's table of contents: type and shape of every entry.

Without the table a missing entry may go unnoticed: a missing random stream or momentum would silently start over.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import CLASS_PATH, INIT_ARGS
from ddn_lightning.checkpoint.loops import FORMAT
from ddn_lightning.errors import ConfigurationError

CHECKPOINT_KEY, MODEL, TRANSFORM = "ddn_lightning", "model", "transform"  # the record, and entries of it
SEQUENCE_KEYS = ("name", "shuffle_seed", "task_classes", "epochs_per_task", "batch_size", "drop_last", "data")
EXTRA_STATE = "_extra_state"  # torch's key for get_extra_state in a state dict
PARTS, CALIBRATED = "parts", "calibrated_statistics"  # entries of the record
PROGRESS, BATCH_NORM, BUFFER_SIZE = "progress", "batch_norm", "buffer_size"  # entries of the extra state
NOT_LISTED = ("loops", "pytorch-lightning_version")  # checked elsewhere; Lightning may migrate them to its version


def checked_record(record: object, method: str) -> dict[str, Any]:
    """The method's record, checked. Raise if it is of another method."""
    if record is None:
        raise ConfigurationError("this checkpoint was not written by a method of ddn_lightning")
    saved = checks.mapping("record", record)
    if saved.get("format") != FORMAT:
        raise ConfigurationError(
            f"the checkpoint must be of format {FORMAT}, got {saved.get('format', 1)}: train again"
        )
    checks.mapping("record", saved, ("method", "num_classes", "sequence", "contents", PARTS))
    if saved["method"] != method:
        raise ConfigurationError(f"expected a checkpoint of {method}, got one of {saved['method']}")
    sequence = checks.mapping("record of the sequence", saved["sequence"], SEQUENCE_KEYS)
    checks.integer("seed of the data order", sequence["shuffle_seed"], most=checks.LARGEST_SEED)
    return saved


def model_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The class and the arguments of the method that wrote a checkpoint."""
    if CHECKPOINT_KEY not in checkpoint:
        raise ConfigurationError("this checkpoint was not written by a method of ddn_lightning")
    record = checks.mapping("record", checkpoint[CHECKPOINT_KEY], (MODEL,))
    return checks.mapping("model", record[MODEL], (CLASS_PATH, INIT_ARGS))


def check_number_of_classes(record: dict[str, Any], num_classes: int, may_be_fewer: bool) -> None:
    """Raise if the record is of another number of classes, or of more if it may be fewer."""
    saved = record["num_classes"]
    if saved != num_classes and not (may_be_fewer and checks.integer("num_classes", saved, least=1) < num_classes):
        raise ConfigurationError(f"expected a checkpoint for {num_classes} classes, got one for {saved}")


def progress_in(checkpoint: dict[str, Any]) -> object:
    """The saved progress of the method."""
    weights = checks.mapping("state_dict", checkpoint.get("state_dict"))
    return checks.mapping("progress", weights.get(EXTRA_STATE), (PROGRESS,))[PROGRESS]


def table_of_contents(checkpoint: dict[str, Any]) -> dict[str, str]:
    """Type and shape of every entry, by path.

    >>> import torch
    >>> table_of_contents({"epoch": 3, "state_dict": {"bias": torch.zeros(2)}, "callbacks": {}})
    {'epoch': 'int', 'state_dict/bias': 'float32 of shape (2,)', 'callbacks': 'a dict of 0'}
    """
    listed = {name: value for name, value in checkpoint.items() if name not in NOT_LISTED}
    return dict(_entries(listed, ""))


def check_contents(checkpoint: dict[str, Any], table: object) -> None:
    """Raise if an entry is missing, or its type or shape has changed."""
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
