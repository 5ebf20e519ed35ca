"""A trained method from its run folder or checkpoint, ready to predict."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from ddn_lightning.checkpoint import checks
from ddn_lightning.construction import CLASS_PATH, INIT_ARGS, NOT_KEPT, Constructed, find_class, make
from ddn_lightning.errors import ConfigurationError

CHECKPOINT_KEY, MODEL, TRANSFORM, MEMORY = "ddn_lightning", "model", "transform", "memory"
LAST = ("checkpoints", "last.ckpt")
FOR_TRAINING = ("optimizer", "lr_scheduler")  # functions, which a checkpoint cannot hold; a fit needs them anew
Method = TypeVar("Method", bound=Constructed)


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint of a run folder, or the file itself."""
    given = Path(path).expanduser()
    found = given.joinpath(*LAST) if given.is_dir() else given
    if not found.is_file():
        raise ConfigurationError(f"path must be a run folder with {'/'.join(LAST)}, or a checkpoint, got {given}")
    return found


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint, without executing anything in it."""
    file = find_checkpoint(path)
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch advises to execute the code in it
        raise ConfigurationError(
            f"{file} must be a checkpoint of a method, and cannot be read: it is none, or holds other things than "
            "tensors and plain values"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{file} must be a checkpoint of a method, and cannot be read: {reason}") from error
    return checks.mapping("contents", checkpoint)


def has_model(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint says how its method was made; those of version 0.1 do not."""
    return MODEL in checks.mapping("record", checkpoint.get(CHECKPOINT_KEY, {}))


def arguments_of(checkpoint: dict[str, Any], given: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments that a method was made with; objects such as the backbone are made anew.

    Args:
        checkpoint: A checkpoint.
        given: Names of arguments that are not needed.
    """
    record = checkpoint[CHECKPOINT_KEY]
    arguments = checks.mapping("model", record[MODEL], (CLASS_PATH, INIT_ARGS))[INIT_ARGS]
    described = {**checks.mapping("arguments", arguments), TRANSFORM: record.get(TRANSFORM)}
    needed = {name: value for name, value in described.items() if name not in (*given, *FOR_TRAINING)}
    made: dict[str, Any] = {}
    for name, value in needed.items():
        try:
            is_object = isinstance(value, dict) and bool({CLASS_PATH, NOT_KEPT} & value.keys())
            made[name] = make(value, Constructed, name) if is_object else value
        except ConfigurationError:
            if name != MEMORY:  # which only training needs: a resumed fit refuses another
                raise
    return made


def class_of(checkpoint: dict[str, Any], base: type[Method]) -> type[Method]:
    """The class of the method that wrote a checkpoint."""
    if not has_model(checkpoint):
        raise ConfigurationError(
            "this checkpoint of version 0.1 does not say how its method was made: use the method's class, as in "
            "ER.load_from_checkpoint(path, backbone=..., distiller=..., transform=...)"
        )
    model = checks.mapping("model", checkpoint[CHECKPOINT_KEY][MODEL], (CLASS_PATH,))
    name = str(model[CLASS_PATH]).rpartition(".")[2]
    return find_class(model[CLASS_PATH], base, "method", f"use its class: {name}.load_from_checkpoint(path)")
