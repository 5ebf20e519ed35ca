"""The front page and the manual, for the tests that do what they say."""

import re
import shlex
from pathlib import Path

from ddn_lightning.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OWN_TESTS = ("docs/drop_in.md", "docs/streams.md")  # pages with a test file of their own
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
TEXT = "\n".join([README, *(text for path, text in PAGES.items() if path not in OWN_TESTS)])


def blocks(text: str, language: str) -> list[str]:
    """The code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text: str) -> list[str]:
    """All commands of the shell blocks, each once and on one line."""
    joined = [re.sub(r" \\\n\s*", " ", block) for block in blocks(text, "bash")]
    lines = [line for block in joined for line in block.splitlines() if not line.startswith("#")]
    return list(dict.fromkeys(command.strip() for line in lines for command in line.split(" && ")))


def generated(text: str, name: str) -> str:
    """The part of a text between the marks of this name."""
    assert f"<!-- {name} -->" in text, name
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def run(command: str) -> int:
    """The exit code of a ``ddn`` command, run here."""
    program, *arguments = shlex.split(command)
    assert program == "ddn"
    try:
        return main(arguments)
    except SystemExit as error:
        return int(error.code or 0)
