"""Changes of a checkpoint: for each node of its tree, several other values."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HUGE = 10**30
DELETED = object()


@dataclass(frozen=True, eq=False)
class Tampering:
    """One change: the node at ``path`` becomes ``value`` or is deleted."""

    path: tuple[Any, ...]
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.path))}: {self.name}"

    def applied_to(self, checkpoint: Any) -> Any:
        """A changed copy, which shares its tensors with the original."""
        return _with(checkpoint, self.path, self.value)


def tamperings(checkpoint: dict[str, Any]) -> list[Tampering]:
    """All changes of a checkpoint, node by node."""
    found = []
    for path, value, is_in_tuple in _nodes(checkpoint):
        changes = dict(_changes(value))
        if not is_in_tuple:
            changes["deleted"] = DELETED
        found += [Tampering(path, name, changed) for name, changed in changes.items()]
    return found


def _nodes(tree: Any, path: tuple[Any, ...] = (), is_in_tuple: bool = False) -> Iterator[tuple[Any, Any, bool]]:
    if path:
        yield path, tree, is_in_tuple
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _nodes(value, (*path, key))
    elif isinstance(tree, list | tuple) and len(tree) <= 10:  # not the 624 numbers of a random state
        for index, value in enumerate(tree):
            yield from _nodes(value, (*path, index), isinstance(tree, tuple))


def _changes(value: Any) -> Iterator[tuple[str, Any]]:
    yield "another type", 7.5 if isinstance(value, str) else "text"
    if isinstance(value, Tensor):
        yield from _changes_of_tensor(value)
    elif isinstance(value, dict | list | tuple):
        if value:
            yield "emptied", type(value)()
        if isinstance(value, list | tuple) and value:
            yield "one less", value[:-1]
            if isinstance(value[0], int):
                yield "a negative", type(value)([-1, *value[1:]])
                yield "a huge", type(value)([HUGE, *value[1:]])
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        pass
    elif isinstance(value, int):
        yield from {"negative": -7, "out of range": 10**6, "huge": HUGE, "not a number": float("nan")}.items()
    elif isinstance(value, float):
        yield from {"not a number": float("nan"), "infinite": float("inf")}.items()


def _changes_of_tensor(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "another shape", value[None].clone()
    yield "another type of number", value.to(torch.int64 if value.dtype != torch.int64 else torch.float32)
    if value.dim() and len(value):
        yield "no rows", value[:0].clone()
        yield "a row more", torch.cat([value, value[:1]])
    if value.is_floating_point() and value.numel():
        yield "not a number", _with_first(value, float("nan"))
        yield "infinite", _with_first(value, float("inf"))
    elif value.dtype == torch.int64 and value.numel():
        yield "negative", _with_first(value, -1)
        yield "out of range", _with_first(value, 10**6)


def _with_first(value: Tensor, element: float) -> Tensor:
    changed = value.clone()
    changed.view(-1)[0] = element
    return changed


def _with(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    first, *rest = path
    changed = list(tree) if isinstance(tree, tuple) else copy.copy(tree)
    if rest:
        changed[first] = _with(tree[first], tuple(rest), value)
    elif value is DELETED:
        del changed[first]
    else:
        changed[first] = value
    return tuple(changed) if isinstance(tree, tuple) else changed
