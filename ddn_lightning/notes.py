"""Notes to the user, one line on stderr printed by the first rank, and text that is safe to print."""

import re
import sys
from functools import cache

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def note(text: str) -> None:
    """Print a note."""
    lightning = sys.modules.get("lightning.fabric.utilities.rank_zero")  # a process without it has no other ranks
    if lightning is None or lightning.rank_zero_only.rank == 0:
        print(f"note: {printable(text)}", file=sys.stderr)


def printable(text: str) -> str:
    r"""Text with escaped control characters: a name from a foreign file could command the terminal.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@cache
def note_once(text: str) -> None:
    """Print a note once per process, however often its cause occurs."""
    note(text)
