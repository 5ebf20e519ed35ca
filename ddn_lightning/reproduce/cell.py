"""One entry of a table: a method in a setting."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a method in a setting, named by the files in ``configs/``.

    Args:
        setting: ``online`` or ``offline``.
        data: Dataset.
        buffer_size: Samples that the memory holds; 0 for a method without memory.
        method: Method.
        plugin: Plug-in, or ``none``.
        variant: Arguments of the plug-in that distinguish cells of one table, such as ``alpha=0.5 beta=0.9``.
    """

    setting: str
    data: str
    buffer_size: int
    method: str
    plugin: str = "none"
    variant: str = ""
