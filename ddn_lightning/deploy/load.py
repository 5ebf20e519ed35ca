"""Load a trained method from its run folder or checkpoint, ready to predict."""

import copy
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import (
    CLASS_PATH,
    INIT_ARGS,
    NOT_KEPT,
    find_class,
    full_signature,
    kind_of_argument,
    make,
)
from ddn_lightning.checkpoint.files import read_checkpoint
from ddn_lightning.checkpoint.record import CHECKPOINT_KEY, TRANSFORM, model_of
from ddn_lightning.deploy.pretrained import WEIGHTS_FILE, read_pretrained
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.lightning_internals import dump_checkpoint, has_trainer

MEMORY = "memory"
LAST = ("checkpoints", "last.ckpt")
FOR_TRAINING = ("optimizer", "lr_scheduler", "criterion")  # functions, which a checkpoint cannot hold
LONGEST_REASON = 200  # characters of torch's message
MISFIT = "Error(s) in loading state_dict"  # begins torch's message, which has names of weights from the file
META = "meta"  # torch's device for tensors without values, whose memory is not allocated
Method = TypeVar("Method", bound=LightningModule)


def load_method(
    cls: type[Method], path: str | Path, is_strict: bool = True, classes: Sequence[type] = (), **kwargs: Any
) -> Method:
    """The method of a checkpoint, in training mode.

    Args:
        cls: Its class, or an abstract one to take the class that the checkpoint names.
        path: Run folder or checkpoint.
        is_strict: Whether all weights must be there, and no others.
        classes: Further classes that the checkpoint may name.
        **kwargs: Arguments of the method that override those in the checkpoint.
    """
    found = find_checkpoint(path)
    checkpoint = read_any(found)
    maker = class_of(checkpoint, cls, classes) if inspect.isabstract(cls) else cls
    trial = copy.deepcopy(kwargs)  # a distiller belongs to one method
    check_size(lambda: rebuilt(maker, checkpoint, classes, trial), checkpoint, is_strict)
    method = rebuilt(maker, checkpoint, classes, kwargs)
    restore(method, checkpoint, is_strict)
    vars(method)["loaded_from"] = found.absolute()
    return method


def read_any(path: Path) -> dict[str, Any]:
    """A checkpoint, from its file or from the weights of a folder that :func:`save_pretrained` has written."""
    return read_pretrained(path.parent) if path.name == WEIGHTS_FILE else read_checkpoint(path)


def checkpoint_of(method: LightningModule) -> dict[str, Any]:
    """The checkpoint of a trained or loaded method."""
    if has_trainer(method) and method.trainer.state.fn == "fit":
        return dump_checkpoint(method.trainer)
    if method.loaded_from is None:
        raise ConfigurationError("save_pretrained needs a method that was trained or loaded")
    return read_any(Path(str(method.loaded_from)))


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint of a run folder, or the file itself."""
    given = Path(os.path.expanduser(path))
    if (pretrained := given / WEIGHTS_FILE).is_file():
        return pretrained
    found = given.joinpath(*LAST) if given.is_dir() else given
    if not found.is_file():
        raise ConfigurationError(f"path must be a run folder with {'/'.join(LAST)}, or a checkpoint, got {given}")
    return found


def class_of(checkpoint: dict[str, Any], base: type[Method], classes: Sequence[type] = ()) -> type[Method]:
    """The class of the method that wrote a checkpoint, found as by :func:`find_class`."""
    path = model_of(checkpoint)[CLASS_PATH]
    name = str(path).rpartition(".")[2]
    return find_class(path, base, "method", classes, f"use {name}.load_from_checkpoint(path)")


def rebuilt(
    maker: type[Method], checkpoint: dict[str, Any], classes: Sequence[type], given: Mapping[str, Any]
) -> Method:
    """A method as a checkpoint describes it, without its weights.

    Args:
        maker: Its class.
        checkpoint: The checkpoint.
        classes: Classes that the caller trusts, see :func:`find_class`.
        given: Arguments that override those of the checkpoint.
    """
    taken = full_signature(maker).parameters
    if unknown := sorted(given.keys() - taken.keys()):
        raise ConfigurationError(f"{maker.__name__} has no argument {', '.join(unknown)}")
    try:
        arguments = {**_arguments_of(maker, checkpoint, classes, given), **given}
        transform = None if TRANSFORM in taken else arguments.pop(TRANSFORM)  # a user's class may not take it
        method: Any = maker(**arguments)
    except ConfigurationError:
        raise
    except Exception as error:  # a constructor may raise any for arguments of a damaged checkpoint
        reason = shorten(str(error), LONGEST_REASON)
        raise ConfigurationError(f"{maker.__name__} cannot be made from the checkpoint: {reason}") from error
    if transform is not None:
        method.transform = transform
    made: Method = method
    return made


def check_size(build: Callable[[], LightningModule], checkpoint: dict[str, Any], is_strict: bool) -> None:
    """Raise unless a method has the shapes of a checkpoint's weights, before memory is allocated for it.

    A network whose constructor needs the values of its tensors cannot be built without memory, and is not checked.
    """
    state = checks.mapping("state_dict", checkpoint.get("state_dict"))
    try:
        with torch.device(META):
            method = build()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is copied to tensors without values
            restore(method, {**checkpoint, "state_dict": dict(state)}, is_strict)
    except ConfigurationError as error:
        cause = str(error.__cause__)
        if META not in cause or cause.startswith(MISFIT):
            raise


def restore(method: LightningModule, checkpoint: dict[str, Any], is_strict: bool) -> None:
    """Load progress, statistics and weights of a checkpoint into a method."""
    method.on_load_checkpoint(checkpoint)
    try:
        method.load_state_dict(checkpoint["state_dict"], strict=is_strict)
    except ConfigurationError:
        raise
    except Exception as error:  # torch raises RuntimeError for wrong shapes, and others for what is no tensor
        reason = shorten(str(error).partition("\n")[2] or str(error), LONGEST_REASON)
        parts = f"{type(method).__name__} with {type(method.backbone).__name__}"
        raise ConfigurationError(f"the checkpoint's weights do not fit {parts}: {reason}") from error


def _arguments_of(
    maker: type, checkpoint: dict[str, Any], classes: Sequence[type], given: Iterable[str]
) -> dict[str, Any]:
    """The arguments that a method was made with, except those given; objects such as the backbone are made."""
    arguments = checks.mapping("arguments", model_of(checkpoint)[INIT_ARGS])
    described = {**arguments, TRANSFORM: checkpoint[CHECKPOINT_KEY].get(TRANSFORM)}
    needed = {name: value for name, value in described.items() if name not in (*given, *FOR_TRAINING)}
    made: dict[str, Any] = {}
    for name, value in needed.items():
        try:
            is_object = isinstance(value, dict) and bool({CLASS_PATH, NOT_KEPT} & value.keys())
            made[name] = make(value, kind_of_argument(maker, name), name, classes) if is_object else value
        except ConfigurationError:
            if name != MEMORY:  # which only training needs: a resumed fit refuses another
                raise
    return made
