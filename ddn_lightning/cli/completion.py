"""Completion of the shell, which argcomplete asks for: ``eval "$(register-python-argcomplete ddn)"``."""

import argparse
import os

from ddn_lightning.cli.commands import LINES, TRAINER_COMMANDS

COMPLETION = "_ARGCOMPLETE"  # variable of argcomplete: how many words of the shell's line name the program
CONFIG_OPTIONS = ("-c", "--config")


def words_before_cursor() -> list[str]:
    """The words of the shell's line up to the one to complete.

    Commands and the names of configurations are completed here, which ends the process. The parsers of the commands
    complete the others, as jsonargparse calls argcomplete before it parses.
    """
    import argcomplete  # here: it is optional, and set up by whoever has it

    line, cursor = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words: list[str] = argcomplete.lexers.split_line(line, cursor)[3][1:]
    if not words:
        parser = argparse.ArgumentParser(prog="ddn")
        parser.add_argument("command", choices=LINES)
        argcomplete.autocomplete(parser)
    elif words[0] in LINES:
        os.environ[COMPLETION] = "2"  # the parser of a command takes "ddn report" for the program
        if words[-1] in CONFIG_OPTIONS and words[0] in TRAINER_COMMANDS:
            from ddn_lightning.cli.parser import CommandParser, ConfigFile  # here: commands are completed without it

            configured = CommandParser(prog="ddn")
            configured.add_argument(*CONFIG_OPTIONS, action=ConfigFile)
            configured.parse_args([])
    return words
