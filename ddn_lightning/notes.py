"""What a user should know although nothing is wrong: one line on the standard error stream."""

import sys
from functools import cache

from lightning.pytorch.utilities import rank_zero_only


def note(text: str) -> None:
    """Say something, on the first rank only."""
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(f"note: {text}", file=sys.stderr)


@cache
def note_once(text: str) -> None:
    """Say something that is found out several times in a run, such as for every stage."""
    note(text)
