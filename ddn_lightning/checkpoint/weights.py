"""Checks of weights. Lightning would notice a wrong value in the first step, or never."""

from typing import Any, NoReturn

from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.errors import ConfigurationError


def check_weights(saved: object, own: dict[str, Any], is_strict: bool = True) -> None:
    """Raise unless a checkpoint's ``state_dict`` is finite and fits our own; ``is_strict``: also has equal keys."""
    found = checks.mapping("state_dict", saved)
    if is_strict and found.keys() != own.keys():
        missing, unknown = sorted(own.keys() - found.keys()), sorted(map(str, found.keys() - own.keys()))
        _misfit(f"missing: {', '.join(missing[:5]) or 'nothing'}; unexpected: {', '.join(unknown[:5]) or 'nothing'}")
    for name, weight in own.items():
        if name in found and isinstance(weight, Tensor):
            _check_weight(name, found[name], weight)


def check_buffers(part: str, saved: object, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Saved values of some of a network's buffers. Raise unless they are finite and fit."""
    found: dict[str, Tensor] = checks.mapping(part, saved)
    for name, value in found.items():
        if name not in own:
            raise ConfigurationError(f"the checkpoint's {part} must be of this network, which has no buffer {name!r}")
        checks.tensor(f"{part}/{name}", value, None, own[name].shape)
    return found


def _check_weight(name: str, saved: object, own: Tensor) -> None:
    part, dtype = f"state_dict/{name}", None if own.is_floating_point() else own.dtype
    if not isinstance(saved, Tensor) or saved.shape != own.shape:
        _misfit(f"{part} must be of shape {tuple(own.shape)}, got {checks.described(saved)}")
    if own.isfinite().all():
        checks.tensor(part, saved, dtype, own.shape)
    elif not saved.is_floating_point():  # a buffer with infinite values, such as a mask, may hold any value
        checks.refuse(part, "floating point", saved)


def _misfit(reason: str) -> NoReturn:
    raise ConfigurationError(f"the checkpoint does not fit: another network or distiller, or damaged ({reason})")
