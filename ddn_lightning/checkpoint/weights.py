"""Checks of weights and optimizer states. Lightning would notice a wrong value in the first step, or never."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint import checks
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.metrics.accuracy_matrix import CALIBRATED_MATRIX, MATRICES

REQUIRED = {torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"), torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq")}
STATISTICS = ("running_var", "num_batches_tracked")  # of BatchNorm, never negative
GIVEN = ("lr", "momentum", "weight_decay")  # of the classifier: constructor arguments override restored optimizer state
NEVER_NEGATIVE = ("step", "steps", "exp_avg_sq", "square")
PLAIN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # whose states have the shape of their parameters


def check_weights(saved: object, own: dict[str, Any], is_fit: bool = True, is_strict: bool = True) -> None:
    """Raise unless a checkpoint's ``state_dict`` is finite and fits our own.

    The accuracy matrices must fit only if ``is_fit``; an evaluation takes the checkpoint's. ``is_strict``: equal keys.
    """
    found = checks.mapping("state_dict", saved)
    if is_strict and (found.keys() ^ own.keys()) - {CALIBRATED_MATRIX}:  # version 0.1 has no calibrated matrix
        missing, unknown = sorted(own.keys() - found.keys()), sorted(map(str, found.keys() - own.keys()))
        _misfit(f"missing: {', '.join(missing[:5]) or 'nothing'}; unexpected: {', '.join(unknown[:5]) or 'nothing'}")
    for name, weight in own.items():
        if name in found and isinstance(weight, Tensor) and (is_fit or name not in MATRICES):
            _check_weight(name, found[name], weight)


def fit_matrices_to_checkpoint(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Resize the accuracy matrices to the checkpoint's, for a method that is loaded without data."""
    if (measured := state.get(prefix + "accuracy_matrix")) is not None:  # version 0.1 has no calibrated matrix
        state.setdefault(prefix + CALIBRATED_MATRIX, torch.full_like(measured, torch.nan))
    for name in MATRICES:
        if (saved := state.get(prefix + name)) is not None:
            dtype = torch.promote_types(saved.dtype, torch.float32)  # version 0.1 saved bfloat16 in bf16-true
            matrix = saved.new_full(saved.shape, torch.nan, device=getattr(module, name).device, dtype=dtype)
            setattr(module, name, matrix)


def check_buffers(part: str, saved: object, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Saved values of some of a network's buffers. Raise unless they are finite and fit."""
    found: dict[str, Tensor] = checks.mapping(part, saved)
    for name, value in found.items():
        if name not in own:
            raise ConfigurationError(f"the checkpoint's {part} must be of this network, which has no buffer {name!r}")
        checks.tensor(f"{part}/{name}", value, None, own[name].shape, 0 if name.endswith(STATISTICS) else None)
    return found


def _check_weight(name: str, saved: object, own: Tensor) -> None:
    part, dtype = f"state_dict/{name}", None if own.is_floating_point() else own.dtype
    if not isinstance(saved, Tensor) or saved.shape != own.shape:
        _misfit(f"{part} must be of shape {tuple(own.shape)}, got {checks.described(saved)}")
    if name in MATRICES:
        checks.tensor(part, saved, dtype, own.shape, 0, 100, may_be_nan=True)
    elif own.isfinite().all():
        checks.tensor(part, saved, dtype, own.shape, 0 if name.endswith(STATISTICS) else None)
    elif not saved.is_floating_point():  # a buffer with infinite values, such as a mask, may hold any value
        checks.refuse(part, "floating point", saved)


def _misfit(reason: str) -> NoReturn:
    raise ConfigurationError(f"the checkpoint does not fit: another network or distiller, or damaged ({reason})")


def check_optimizers(saved: object, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise unless optimizer states are finite and fit ``optimizers``, into which they are loaded for the check."""
    states = checks.sequence("optimizer_states", saved, len(optimizers))
    for index, (state, optimizer) in enumerate(zip(states, optimizers, strict=True)):
        part, own = f"optimizer_states/{index}", optimizer.state_dict()
        checks.mapping(part, state, ("state", "param_groups"))
        checks.sequence(f"{part}/param_groups", state["param_groups"], len(own["param_groups"]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for key, moments in checks.mapping(f"{part}/state", state["state"]).items():
            place = checks.integer(f"{part}/state", key, 0, len(parameters) - 1)
            form = {name: value.shape for name, value in own["state"].get(place, {}).items()}
            _check_moments(f"{part}/state/{key}", moments, parameters[place], form, type(optimizer))
        for number, (group, own_group) in enumerate(zip(state["param_groups"], own["param_groups"], strict=True)):
            _check_parameters(f"{part}/param_groups/{number}", group, own_group)
        optimizer.load_state_dict(state)  # adds options newer than the checkpoint
        for number, (group, own_group) in enumerate(zip(optimizer.param_groups, own["param_groups"], strict=True)):
            given = GIVEN if index == 0 else ("lr",)
            _check_options(f"{part}/param_groups/{number}", group, own_group, given)


def _check_parameters(part: str, saved: object, own: dict[str, Any]) -> None:
    group = checks.mapping(part, saved, ("params",))
    params = checks.sequence(f"{part}/params", group["params"], len(own["params"]))
    if any(type(number) is not int for number in params) or params != own["params"]:
        checks.refuse(f"{part}/params", f"the numbers from {own['params'][0]} on", params)


def _check_options(part: str, group: dict[str, Any], own: dict[str, Any], given: Sequence[str]) -> None:
    """Raise unless the options equal our own, except those that constructor arguments override."""
    checks.mapping(part, group, own)
    for name, value in own.items():
        if name in given:
            checks.number(f"{part}/{name}", group[name], least=0)
        elif name != "params" and (type(group[name]) is not type(value) or group[name] != value):
            checks.refuse(f"{part}/{name}", f"{value}, the optimizer's value", group[name])


def _check_moments(
    part: str, saved: object, parameter: Tensor, form: dict[str, torch.Size], kind: type[torch.optim.Optimizer]
) -> None:
    """Check an optimizer's state of one parameter; ``form`` has the shapes in a new optimizer's state, if any."""
    for name, value in checks.mapping(part, saved, (*form, *REQUIRED.get(kind, ()))).items():
        where, least = f"{part}/{name}", 0 if name in NEVER_NEGATIVE else None
        if isinstance(value, Tensor) or name in form or name in REQUIRED.get(kind, ()):
            shape = form.get(name, parameter.shape if kind in PLAIN else getattr(value, "shape", ()))
            checks.tensor(where, value, None, () if name == "step" else shape, least)
        elif value is not None:
            checks.number(where, value, least)
