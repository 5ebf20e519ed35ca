"""Checks of parts of a checkpoint: class, type, shape, finite values. Errors name the part and the found value.

The owner of a state checks it before restoring it. Lightning restores everything before it starts training or logging,
so a run with a bad checkpoint ends before it changes any file.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.samples import Samples

LONGEST_SHOWN = 60


def refuse(part: str, expected: str, found: object) -> NoReturn:
    """Raise the error about a part.

    >>> refuse("task", "an integer", "text")
    Traceback (most recent call last):
    ddn_lightning.errors.ConfigurationError: the checkpoint's task must be an integer, got 'text'
    """
    raise ConfigurationError(f"the checkpoint's {part} must be {expected}, got {described(found)}")


def mapping(part: str, value: object, required: Iterable[str] = ()) -> dict[Any, Any]:
    """A dictionary with the required keys."""
    if not isinstance(value, dict):
        refuse(part, "a dictionary", value)
    for name in required:
        if name not in value:
            raise ConfigurationError(f"the checkpoint's {part} must have an entry {name!r}, but there is none")
    return value


def tensor(part: str, value: object, dtype: torch.dtype | None, shape: Sequence[int | None]) -> Tensor:
    """A finite tensor.

    Args:
        part: Name of the part, for the message.
        value: The value found.
        dtype: Expected dtype; ``None`` for any floating-point dtype, since a run may be resumed in another precision.
        shape: Expected shape; ``None`` where any length is valid.
    """
    kind = "floating point" if dtype is None else str(dtype).removeprefix("torch.")
    lengths = ", ".join("any" if length is None else str(length) for length in shape)
    if not isinstance(value, Tensor):
        refuse(part, f"a tensor of {kind}", value)
    is_kind = value.is_floating_point() if dtype is None else value.dtype == dtype
    is_shape = value.dim() == len(shape) and all(e in (None, f) for e, f in zip(shape, value.shape, strict=True))
    if not is_kind or not is_shape:
        refuse(part, f"{kind} of shape ({lengths})", value)
    if value.is_floating_point() and (is_bad := ~value.isfinite()).any():
        raise ConfigurationError(
            f"the checkpoint's {part} must be finite everywhere, but {int(is_bad.sum())} of {value.numel()} elements "
            f"are not, such as {value[is_bad][0].item()}"
        )
    return value


def described(value: object) -> str:
    """A short description of a value, for messages.

    >>> described(torch.zeros(2, 3)), described({"a": 1}), described(-7)
    ('float32 of shape (2, 3)', 'a dict of 1', '-7')
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple | set):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def check_samples(part: str, held: Samples, form: Samples, is_class_of_task: Tensor, has_logits: bool = False) -> None:
    """Raise unless stored samples, ``held``, have this form, and logits of the classes (tasks, num_classes) if any."""
    size, kind = len(held), form.images.dtype
    is_features = form.images.is_floating_point()  # which have the precision of the run
    tensor(f"{part}/images", held.images, None if is_features else kind, (size, *form.images.shape[1:]))
    if has_logits:
        tensor(f"{part}/logits", held.logits, None, (size, is_class_of_task.shape[1]))


def check_weights(saved: object, own: dict[str, Any], is_strict: bool = True) -> None:
    """Raise unless a checkpoint's ``state_dict`` is finite and fits our own; ``is_strict``: also has equal keys."""
    found = mapping("state_dict", saved)
    if is_strict and found.keys() != own.keys():
        missing, unknown = sorted(own.keys() - found.keys()), sorted(map(str, found.keys() - own.keys()))
        _misfit(f"missing: {', '.join(missing[:5]) or 'nothing'}; unexpected: {', '.join(unknown[:5]) or 'nothing'}")
    for name, weight in own.items():
        if name in found and isinstance(weight, Tensor):
            _check_weight(name, found[name], weight)


def check_buffers(part: str, saved: object, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Saved values of some of a network's buffers. Raise unless they are finite and fit."""
    found: dict[str, Tensor] = mapping(part, saved)
    for name, value in found.items():
        if name not in own:
            raise ConfigurationError(f"the checkpoint's {part} must be of this network, which has no buffer {name!r}")
        tensor(f"{part}/{name}", value, None, own[name].shape)
    return found


def _check_weight(name: str, saved: object, own: Tensor) -> None:
    part, dtype = f"state_dict/{name}", None if own.is_floating_point() else own.dtype
    if not isinstance(saved, Tensor) or saved.shape != own.shape:
        _misfit(f"{part} must be of shape {tuple(own.shape)}, got {described(saved)}")
    if own.isfinite().all():
        tensor(part, saved, dtype, own.shape)
    elif not saved.is_floating_point():  # a buffer with infinite values, such as a mask, may hold any value
        refuse(part, "floating point", saved)


def _misfit(reason: str) -> NoReturn:
    raise ConfigurationError(f"the checkpoint does not fit: another network or distiller, or damaged ({reason})")
