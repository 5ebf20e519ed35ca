"""Finds hooks of Lightning that a user's class overrides without the part that the method has in them."""

import inspect

from lightning.pytorch import LightningModule

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.learner import Learner

PACKAGE = __name__.partition(".")[0]
OTHER_HOOKS = ("setup", "configure_callbacks")  # besides those that begin with on_


def check_overrides(method: type[Learner]) -> None:
    """Refuse a user's class that overrides a hook of Lightning without the part that the method has in it.

    Whoever calls the overridden hook, by ``super()`` or otherwise, names it.
    """
    users = [one for one in method.__mro__ if not _is_ours(one) and one not in LightningModule.__mro__]
    for one in users:
        overridden = [base for base in method.__mro__[method.__mro__.index(one) :] if _is_ours(base)]
        hooks = {name for base in overridden for name in vars(base) if name.startswith("on_") or name in OTHER_HOOKS}
        for name in hooks & vars(one).keys():
            if not _names(vars(one)[name], name):
                raise ConfigurationError(
                    f"{one.__name__}.{name} must call super().{name} itself: {method.__name__} does its own part in it"
                )


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == PACKAGE


def _names(function: object, name: str) -> bool:
    """Whether a function, or one that it wraps or holds, has a name in its code; what has no code may do anything."""
    parts, seen = [inspect.unwrap(function) if callable(function) else function], []
    while parts:
        seen.append(part := parts.pop())
        code = part if inspect.iscode(part) else getattr(part, "__code__", None)
        if code is None or name in (*code.co_names, *code.co_consts):
            return True
        held = [cell.cell_contents for cell in getattr(part, "__closure__", None) or ()]
        parts += [one for one in (*code.co_consts, *held) if inspect.iscode(one) or inspect.isfunction(one)]
        parts = [one for one in parts if one not in seen]
    return False
