"""What was configured of the classifier's optimizer and its schedulers, before training moved any value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from ddn_lightning.checkpoint import checks
from ddn_lightning.checkpoint.construction import plain

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
