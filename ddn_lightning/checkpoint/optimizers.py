"""Optimizers and schedulers of a checkpoint: what was configured, what a resume replaces, and checks."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import plain
from ddn_lightning.checkpoint.growth import grow_moments
from ddn_lightning.errors import ConfigurationError

CONFIGURED = "configured_optimizer"  # its entry in a checkpoint
DERIVED = ("base_lrs", "last_epoch")  # of a scheduler's state: not what a user gives


@dataclass(frozen=True)
class Configured:
    """An optimizer and its schedulers by class and options, as plain data. Made before anything is restored.

    A resumed run compares its own with the checkpoint's: learning rates and betas in the optimizer's state may have
    been moved by a schedule or a callback.

    Args:
        optimizer: Class of the optimizer.
        groups: Options of each parameter group.
        schedulers: Class, interval, frequency and initial state of each scheduler.
    """

    optimizer: str
    groups: list[dict[str, Any]]
    schedulers: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: Optimizer, schedulers: Sequence[LRSchedulerConfig]) -> "Configured":
        """What is configured now."""
        groups = [{name: _plain(value) for name, value in options.items()} for options in options_of(optimizer)]
        made = [
            {
                "class": type(config.scheduler).__name__,
                "interval": config.interval,
                "frequency": config.frequency,
                "state": _plain(config.scheduler.state_dict()),
            }
            for config in schedulers
        ]
        return cls(type(optimizer).__name__, groups, made)

    def changed_options(self, before: "Configured") -> list[dict[str, Any]]:
        """For each parameter group, the options that differ, with their values before."""
        return [dict(_changed(then, now)) for then, now in zip(before.groups, self.groups, strict=False)]

    def changed_schedule(self, before: "Configured") -> dict[str, tuple[Any, Any]]:
        """What differs in the schedulers: values now and before, by name."""
        kinds = [[one["class"] for one in made.schedulers] for made in (self, before)]
        if kinds[0] != kinds[1]:
            return {"lr_scheduler": (", ".join(kinds[0]) or None, ", ".join(kinds[1]) or None)}
        found: dict[str, tuple[Any, Any]] = {}
        for then, now in zip(before.schedulers, self.schedulers, strict=True):
            for old, new in ((then, now), (then["state"], now["state"])):
                found |= {f"lr_scheduler.{name}": (new[name], value) for name, value in _changed(old, new)}
        found.pop("lr_scheduler.state", None)
        return found


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The options of each parameter group."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def described_changes(now: Configured, before: Configured) -> list[str]:
    """What differs, for a note; of the schedulers without what follows from the learning rate.

    >>> before, now = (Configured("SGD", [{"lr": lr, "nesterov": False}], []) for lr in (0.1, 0.2))
    >>> described_changes(now, before)
    ['optimizer.lr=0.2 (was 0.1)']
    """
    lines = []
    for number, changed in enumerate(now.changed_options(before)):
        where = f"optimizer.{number}" if len(now.groups) > 1 else "optimizer"
        lines += [f"{where}.{name}={now.groups[number][name]} (was {value})" for name, value in changed.items()]
    for name, (value, then) in now.changed_schedule(before).items():
        last = name.rpartition(".")[2]
        if last not in DERIVED and not last.startswith("_"):
            lines.append(f"{name}={value} (was {then})")
    return lines


def _changed(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries before that differ now; those of another version of torch are left out."""
    return ((name, value) for name, value in before.items() if name in now and now[name] != value)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else plain(value)


MOVED = ("lr", "momentum", "betas", "weight_decay")  # by schedulers and callbacks
PLAIN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # whose states have the shape of their parameters


def take_given(
    checkpoint: dict[str, Any],
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRSchedulerConfig],
    now: Configured,
    before: Configured,
) -> bool:
    """Replace what is configured otherwise than in a checkpoint, which Lightning is about to restore.

    Options that only a schedule or a callback has moved stay as saved. A schedule has moved them from what was
    configured, so with one, any change replaces all of them.

    Args:
        checkpoint: The checkpoint, with states that have not been checked.
        optimizers: The new optimizers, the classifier's first.
        schedulers: Its new schedulers.
        now: What is configured now.
        before: What the checkpoint says was configured.

    Returns:
        Whether the schedulers start anew, and must catch up.
    """
    if now.optimizer != before.optimizer:
        raise ConfigurationError(f"the checkpoint's optimizer is {before.optimizer}, got {now.optimizer}")
    optimizer = optimizers[0]
    states = checkpoint["optimizer_states"]
    if len(states) != len(optimizers):
        checks.refuse("optimizer_states", f"a list of {len(optimizers)}", states)
    first = states[0]
    _check_number_of_groups(first, optimizer)
    changed = now.changed_options(before)
    is_new = bool(now.schedulers or before.schedulers) and (any(changed) or bool(now.changed_schedule(before)))
    for group, options, names in zip(first["param_groups"], options_of(optimizer), changed, strict=False):
        given = options if is_new else {name: options[name] for name in names}
        group.update(copy.deepcopy(given))
    if is_new:
        checkpoint["lr_schedulers"] = [copy.deepcopy(config.scheduler.state_dict()) for config in schedulers]
    return is_new


def unfreeze(module: nn.Module, added: Sequence[dict[str, Any]]) -> None:
    """Train the parameters of groups that callbacks have added: ``BaseFinetuning`` leaves them frozen at a resume."""
    parameters = {parameter for group in added for parameter in group["params"]}
    for part in module.modules() if parameters else ():
        for parameter in parameters.intersection(part.parameters(recurse=False)):
            parameter.requires_grad_(True)
            if isinstance(part, _BatchNorm):
                part.track_running_stats = True


def check_optimizers(saved: list[dict[str, Any]], optimizers: Sequence[Optimizer], is_growing: bool = False) -> None:
    """Raise unless optimizer states fit ``optimizers``, into which they are loaded for the check.

    If ``is_growing``, they are first filled up for parameters that have grown.
    """
    if is_growing:
        grow_moments(saved, optimizers)
    for index, (state, optimizer) in enumerate(zip(saved, optimizers, strict=True)):
        part, own = f"optimizer_states/{index}", optimizer.state_dict()
        _check_number_of_groups(state, optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if isinstance(optimizer, PLAIN):
            for place, moments in state["state"].items():
                _check_moments(f"{part}/state/{place}", moments, parameters[place])
        optimizer.load_state_dict(state)  # adds options newer than the checkpoint
        for number, (group, own_group) in enumerate(zip(optimizer.param_groups, own["param_groups"], strict=True)):
            _check_options(f"{part}/param_groups/{number}", group, own_group, is_classifier=index == 0)


def _check_number_of_groups(state: dict[str, Any], optimizer: Optimizer) -> None:
    saved, own = len(state["param_groups"]), len(optimizer.param_groups)
    if saved != own:
        raise ConfigurationError(
            f"the optimizer must have the checkpoint's number of parameter groups, {saved}, got {own}: a callback that "
            "adds one must do so in on_fit_start when it resumes"
        )


def _check_options(part: str, group: dict[str, Any], own: dict[str, Any], is_classifier: bool) -> None:
    """Raise unless the options equal our own, except those that training may have moved."""
    for name, value in own.items():
        if name in ("params", "lr") or (is_classifier and name in MOVED):
            continue
        if type(group[name]) is not type(value) or group[name] != value:
            raise ConfigurationError(f"the checkpoint's {part}/{name} must be {value!r}, got {group[name]!r}")


def _check_moments(part: str, saved: dict[str, Any], parameter: Tensor) -> None:
    """Check the state of one parameter: torch would notice a wrong shape in the first step, or never."""
    for name, value in saved.items():
        if isinstance(value, Tensor) and name != "step":
            checks.tensor(f"{part}/{name}", value, None, parameter.shape)
