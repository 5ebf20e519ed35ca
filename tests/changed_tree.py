"""A checkpoint with one entry changed."""

import copy
from typing import Any


def changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a checkpoint with another value at ``path``."""
    first, *rest = path
    copied = copy.copy(tree)
    if rest:
        copied[first] = changed(tree[first], tuple(rest), value)
    else:
        copied[first] = value
    return copied
