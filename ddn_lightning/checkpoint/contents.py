"""A checkpoint's table of contents: every entry with its type and shape, so that none can go missing unnoticed.

An entry that is gone is not always noticed otherwise: a random stream that is not there begins anew, and so does an
optimizer's momentum.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.errors import ConfigurationError

LEFT_OUT = ("loops", "pytorch-lightning_version")  # checked on their own; Lightning may migrate them to its version


def table_of_contents(checkpoint: dict[str, Any]) -> dict[str, str]:
    """What is where.

    >>> import torch
    >>> table_of_contents({"epoch": 3, "state_dict": {"bias": torch.zeros(2)}, "callbacks": {}})
    {'epoch': 'int', 'state_dict/bias': 'float32 of shape (2,)', 'callbacks': 'a dict of 0'}
    """
    listed = {name: value for name, value in checkpoint.items() if name not in LEFT_OUT}
    return dict(_entries(listed, ""))


def check_contents(checkpoint: dict[str, Any], table: object) -> None:
    """Raise if an entry is missing, or is another thing than when the checkpoint was written."""
    found = table_of_contents(checkpoint)
    for path, form in checks.mapping("table of contents", table).items():
        if found.get(path) != form:
            raise ConfigurationError(
                f"the checkpoint has changed since it was written: {path} must be {form}, got "
                f"{found.get(path, 'nothing of that form')}"
            )


def _entries(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _entries(entry, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(e, Tensor | dict | list | tuple) for e in value):
        yield path, checks.described(value)
        for index, entry in enumerate(value):
            yield from _entries(entry, f"{path}/{index}")
    elif isinstance(value, list | tuple):
        kinds = " and ".join(sorted({type(entry).__name__ for entry in value}))
        yield path, f"{checks.described(value)} {kinds}".rstrip()
    elif isinstance(value, Tensor | dict):
        yield path, checks.described(value)
    else:
        yield path, type(value).__name__
