"""Completion of the shell, which argcomplete asks for: ``eval "$(register-python-argcomplete ddn)"``."""

import argparse
import os

from ddn_lightning.cli.commands import LINES
from ddn_lightning.cli.parser import COMPLETION


def words_before_cursor() -> list[str]:
    """The words of the shell's line up to the one to complete; the first one is completed here, and ends the process.

    The parsers of the commands complete the others, as jsonargparse calls argcomplete before it parses.
    """
    import argcomplete  # here: it is optional, and set up by whoever has it

    words = argcomplete.lexers.split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][1:]
    if not words:
        parser = argparse.ArgumentParser(prog="ddn")
        parser.add_argument("command", choices=LINES)
        argcomplete.autocomplete(parser)
    elif words[0] in LINES:
        os.environ[COMPLETION] = "2"  # the parser of a command takes "ddn report" for the program
    return words
