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

    @classmethod
    def from_plain(cls, saved: object) -> "Configured":
        """From a checkpoint."""
        found = checks.mapping(CONFIGURED, saved, ("optimizer", "groups", "schedulers"))
        for name in ("groups", "schedulers"):
            if not isinstance(found[name], list):
                checks.refuse(f"{CONFIGURED}/{name}", "a list", found[name])
            for number, one in enumerate(found[name]):
                checks.mapping(f"{CONFIGURED}/{name}/{number}", one, ("class", "state") if name == "schedulers" else ())
        return cls(str(found["optimizer"]), found["groups"], found["schedulers"])

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


REQUIRED = {torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"), torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq")}
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
    states = checks.sequence("optimizer_states", checkpoint["optimizer_states"], len(optimizers))
    first = checks.mapping("optimizer_states/0", states[0], ("param_groups",))
    _check_number_of_groups("optimizer_states/0", first["param_groups"], len(optimizer.param_groups))
    changed = now.changed_options(before)
    is_new = bool(now.schedulers or before.schedulers) and (any(changed) or bool(now.changed_schedule(before)))
    for group, options, names in zip(first["param_groups"], options_of(optimizer), changed, strict=False):
        given = options if is_new else {name: options[name] for name in names}
        checks.mapping("optimizer_states/0/param_groups", group).update(copy.deepcopy(given))
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


def check_optimizers(saved: object, optimizers: Sequence[Optimizer], is_growing: bool = False) -> None:
    """Raise unless optimizer states are finite and fit ``optimizers``, into which they are loaded for the check.

    If ``is_growing``, they are first filled up for parameters that have grown.
    """
    if is_growing:
        grow_moments(saved, optimizers)
    states = checks.sequence("optimizer_states", saved, len(optimizers))
    for index, (state, optimizer) in enumerate(zip(states, optimizers, strict=True)):
        part, own = f"optimizer_states/{index}", optimizer.state_dict()
        checks.mapping(part, state, ("state", "param_groups"))
        _check_number_of_groups(part, state["param_groups"], len(own["param_groups"]))
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for key, moments in checks.mapping(f"{part}/state", state["state"]).items():
            place = checks.integer(f"{part}/state", key, 0, len(parameters) - 1)
            form = {name: value.shape for name, value in own["state"].get(place, {}).items()}
            _check_moments(f"{part}/state/{key}", moments, parameters[place], form, type(optimizer))
        for number, (group, own_group) in enumerate(zip(state["param_groups"], own["param_groups"], strict=True)):
            saved_group = checks.mapping(f"{part}/param_groups/{number}", group, ("params",))
            checks.sequence(f"{part}/param_groups/{number}/params", saved_group["params"], len(own_group["params"]))
        optimizer.load_state_dict(state)  # adds options newer than the checkpoint
        for number, (group, own_group) in enumerate(zip(optimizer.param_groups, own["param_groups"], strict=True)):
            _check_options(f"{part}/param_groups/{number}", group, own_group, is_classifier=index == 0)


def _check_number_of_groups(part: str, saved: object, number: int) -> None:
    if not isinstance(saved, list):
        checks.refuse(f"{part}/param_groups", f"a list of {number}", saved)
    if len(saved) != number:
        raise ConfigurationError(
            f"the optimizer must have the checkpoint's number of parameter groups, {len(saved)}, got {number}: a "
            "callback that adds one must do so in on_fit_start when it resumes"
        )


def _check_options(part: str, group: dict[str, Any], own: dict[str, Any], is_classifier: bool) -> None:
    """Raise unless the options equal our own, except those that training may have moved."""
    checks.mapping(part, group, own)
    for name, value in own.items():
        if name in ("params", "lr") or (is_classifier and name in MOVED):
            continue
        if type(group[name]) is not type(value) or group[name] != value:
            raise ConfigurationError(f"the checkpoint's {part}/{name} must be {value!r}, got {group[name]!r}")


def _check_moments(
    part: str, saved: object, parameter: Tensor, form: dict[str, torch.Size], kind: type[Optimizer]
) -> None:
    """Check an optimizer's state of one parameter; ``form`` has the shapes in a new optimizer's state, if any."""
    for name, value in checks.mapping(part, saved, (*form, *REQUIRED.get(kind, ()))).items():
        where = f"{part}/{name}"
        if isinstance(value, Tensor) or name in form or name in REQUIRED.get(kind, ()):
            shape = form.get(name, parameter.shape if kind in PLAIN else getattr(value, "shape", ()))
            checks.tensor(where, value, None, () if name == "step" else shape)
        elif value is not None:
            checks.number(where, value)
