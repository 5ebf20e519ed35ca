"""Notes to the user: one line on stderr, printed by the first rank."""

import sys
from functools import cache

from lightning.pytorch.utilities import rank_zero_only


def note(text: str) -> None:
    """Print a note."""
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(f"note: {text}", file=sys.stderr)


@cache
def note_once(text: str) -> None:
    """Print a note once per process, however often its cause occurs."""
    note(text)
