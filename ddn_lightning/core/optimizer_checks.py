"""Checks of the optimizers and schedulers that a user gives, at the start of a fit."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.errors import ConfigurationError, note

SHOWN = 3  # names in a note
SGD_OPTIONS = ("lr", "momentum", "weight_decay", "lr_decay")  # not used with another optimizer


def check_optimizers_of(method: Any) -> None:
    """Refuse optimizers and schedulers that cannot train a task sequence; note unused options."""
    optimization = method.optimization
    if optimization.build_scheduler is not None and not optimization.has_scheduler:
        raise ConfigurationError("lr_scheduler must be left out where configure_optimizers returns its own")
    check_optimizer(method, optimization.lr_milestones if method.has_own_optimizer else ())
    check_schedulers(method, restarts=optimization.has_scheduler)
    if optimization.build_optimizer is not None:
        note_unused(optimization)


def check_optimizer(method: Any, ignored_milestones: Sequence[int]) -> None:
    """Refuse optimizers that would train nothing, and milestones that would be ignored.

    Args:
        method: The method, whose Trainer has the optimizers.
        ignored_milestones: ``lr_milestones``, if the user has given an optimizer or a scheduler.
    """
    optimizer, *others = method.trainer.optimizers  # Lightning's placeholder for none has no parameters
    is_learning = any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])
    if not is_learning or isinstance(optimizer, LBFGS):
        found = type(optimizer).__name__ if is_learning else "none with trainable parameters"
        raise ConfigurationError(
            f"configure_optimizers must return an optimizer that steps without a closure, such as SGD, got {found}"
        )
    learned = {parameter for term in method.terms for parameter in term.parameters()}
    if len(others) > 1 or any(set(group["params"]) - learned for other in others for group in other.param_groups):
        raise ConfigurationError(
            "configure_optimizers must return one optimizer, with parameter groups for different options, and after it "
            f"only the distiller's: no other takes a step; got {_names(method.trainer.optimizers)}"
        )
    _check_parameters(method, optimizer)
    if ignored_milestones:
        raise ConfigurationError(
            "lr_milestones must be left out with optimizer, lr_scheduler or an overridden configure_optimizers, got "
            f"{tuple(ignored_milestones)}"
        )


def check_creates(name: str, given: object, example: str) -> None:
    """Refuse an argument that creates nothing; ``example`` says what would."""
    if given is not None and not callable(given):
        raise ConfigurationError(f"{name} must be a function {example}, got {given!r}")


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Refuse an argument whose function cannot create what it should, as with a negative learning rate."""
    try:
        yield
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ConfigurationError(f"{name} cannot be created: {error}") from error


def note_unused(optimization: Any) -> None:
    """Note the options of the default SGD that were given, though another optimizer does not use them."""
    defaults = inspect.signature(type(optimization)).parameters
    found = {name: getattr(optimization, name) for name in SGD_OPTIONS}
    if given := {name: value for name, value in found.items() if value != defaults[name].default}:
        values = ", ".join(f"{name}={value}" for name, value in given.items())
        note(f"optimizer is given, and these options of the default SGD do not apply to it: {values}")


def check_schedulers(method: Any, restarts: bool) -> None:
    """Refuse schedulers that cannot step.

    Args:
        method: The method, whose Trainer has the schedulers.
        restarts: Whether they restart at each task.
    """
    for config in method.trainer.lr_scheduler_configs:
        name = type(config.scheduler).__name__
        if isinstance(config.scheduler, ReduceLROnPlateau):
            raise ConfigurationError(
                f"lr_scheduler must not be {name}: a new task raises the loss, and accuracy is measured at its end. "
                "Choose one that follows epochs or steps, such as CosineAnnealingLR"
            )
        if config.interval not in ("epoch", "step"):
            raise ConfigurationError(f"interval of {name} must be one of epoch, step, got {config.interval!r}")
        if config.interval == "epoch" and steps_taken(config.scheduler) is None:
            raise ConfigurationError(f"{name} must count its steps in last_epoch, as torch's schedulers do")
        if isinstance(config.scheduler, OneCycleLR) and method.trainer.max_steps == -1:
            _check_length(method, config, restarts)


def steps_taken(scheduler: LRScheduler) -> int | None:
    """The steps of a scheduler so far; those of a ``ChainedScheduler`` are counted by its parts only."""
    found: int | None = getattr(scheduler, "last_epoch", None)
    parts: list[LRScheduler] = getattr(scheduler, "_schedulers", [])
    return steps_taken(parts[0]) if found is None and parts else found


def _check_parameters(method: Any, optimizer: Optimizer) -> None:
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if foreign := set(held) - set(method.parameters()):
        raise ConfigurationError(
            f"{len(foreign)} of {len(held)} parameters of the optimizer are not the method's, and would not be saved: "
            "create it from the parameters that it is given, or from self.parameters()"
        )
    known = {*held, *(parameter for term in method.terms for parameter in term.parameters())}
    left = [name for name, parameter in method.named_parameters() if parameter.requires_grad and parameter not in known]
    if left:
        shown = ", ".join(left[:SHOWN]) + (", ..." if len(left) > SHOWN else "")
        note(f"the optimizer leaves out {len(left)} trainable parameters, which stay as they are: {shown}")


def _check_length(method: Any, config: LRSchedulerConfig, restarts: bool) -> None:
    """Refuse a ``OneCycleLR`` that ends before a task, or the run, does: it raises in the step after its last."""
    sequence, limit = method.sequence, method.trainer.limit_train_batches
    firsts = [task * sequence.epochs_per_task for task in range(sequence.num_tasks)]  # epochs
    loaders = [
        TaskLoader(method.stream(sequence, epoch), sequence.batch_size, drop_last=sequence.drop_last)
        for epoch in firsts
    ]
    batches = [loader.batches_within(limit) for loader in loaders]
    if config.interval == "epoch":
        batches = [1] * len(batches)
    needed = sequence.epochs_per_task * (max(batches) if restarts else sum(batches)) // config.frequency
    given: int = config.scheduler.total_steps  # type: ignore[union-attr]
    if given < needed:
        raise ConfigurationError(
            f"total_steps of OneCycleLR must be at least {needed}, the {config.interval}s of "
            f"{'the longest task' if restarts else 'the run'}, got {given}"
        )


def _names(optimizers: Sequence[Optimizer]) -> str:
    return ", ".join(type(optimizer).__name__ for optimizer in optimizers)
