"""A checkpoint with one entry changed."""

import copy
from typing import Any

DELETED = object()


def changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a checkpoint with another value at ``path``; without an entry there if it is :data:`DELETED`."""
    first, *rest = path
    copied = copy.copy(tree)
    if rest:
        copied[first] = changed(tree[first], tuple(rest), value)
    elif value is DELETED:
        del copied[first]
    else:
        copied[first] = value
    return copied
