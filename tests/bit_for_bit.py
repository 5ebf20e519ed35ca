"""What two runs have left behind, compared bit for bit."""

from typing import Any

import torch


def difference(first: Any, second: Any, where: str = "") -> str | None:
    """Where two runs differ, if they do."""
    if isinstance(first, torch.Tensor):
        same = first.dtype == second.dtype and torch.equal(first.nan_to_num(-1.5), second.nan_to_num(-1.5))
        return None if same and torch.equal(first.isnan(), second.isnan()) else where
    if isinstance(first, dict | list | tuple):
        if type(first) is not type(second) or len(first) != len(second):
            return f"{where} ({type(first).__name__} of {len(first)})"
        keys = first if isinstance(first, dict) else range(len(first))
        found = (difference(first[key], second[key], f"{where}/{key}") for key in keys)
        return next((place for place in found if place is not None), None)
    return None if first == second else f"{where}: {first!r} != {second!r}"
