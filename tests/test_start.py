"""Commands that need no torch and no Lightning import neither; public names are imported when they are used."""

import subprocess
import sys

import pytest

import ddn_lightning
from ddn_lightning import api

HEAVY = ("torch", "lightning", "matplotlib", "scipy")
IMPORTED = f"print([name for name in {HEAVY} if name in sys.modules])"
RUN = f"""
import contextlib, io, sys
from ddn_lightning.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    assert main(sys.argv[1:]) == {{}}
{IMPORTED}
"""

EXIT = f"def leave(_): {IMPORTED}; sys.exit()\nos._exit = leave\n"  # as argcomplete ends the process


def printed_by(*arguments: str) -> str:
    """The output of a new Python."""
    return subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("command", "code"), [("--help", 0), ("--version", 0), ("configs", 0), ("configs --copy .", 2), ("fti", 2)]
)
def test_torch_is_not_imported(command: str, code: int) -> None:
    assert printed_by("-c", RUN.format(code), *command.split()) == "[]"


@pytest.mark.parametrize("line", ["ddn rep", "ddn fit --model.lr 0.1 -c quickst"])
def test_torch_is_not_imported_to_complete_a_command_or_a_configuration(line: str) -> None:
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": "words", "COMP_LINE": line, "COMP_TYPE": "9"}
    asked["COMP_POINT"] = str(len(line))
    script = f"import os, sys; os.environ.update({asked})\n{EXIT}"
    script += "from ddn_lightning.cli.completion import words_before_cursor; words_before_cursor()"
    assert printed_by("-c", script) == "[]"


def test_a_public_name_is_imported_when_it_is_used() -> None:
    script = f"import sys, ddn_lightning; {IMPORTED}; ddn_lightning.ER; {IMPORTED}"
    assert printed_by("-c", script).startswith("[]\n['torch', 'lightning'")


def test_the_package_has_the_public_names_of_its_rooms() -> None:
    rooms = ("callbacks", "core", "data", "deploy", "distill", "memory", "methods")
    public: list[str] = ddn_lightning.__all__  # type: ignore[attr-defined]  # mypy sees the names themselves
    of_rooms = {name for room in rooms for name in getattr(ddn_lightning, room).__all__}
    assert of_rooms < set(public) <= set(dir(ddn_lightning))
    assert all(getattr(ddn_lightning, name) is getattr(api, name) for name in public)
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        _ = ddn_lightning.nosuch  # type: ignore[attr-defined]
