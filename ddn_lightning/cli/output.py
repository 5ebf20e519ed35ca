"""Writes a command's result to a file or to standard output."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ddn_lightning.errors import ConfigurationError, printable
from ddn_lightning.runs.files import atomic_write

STANDARD_OUTPUT = "-"


def check_output(output: str) -> None:
    """Raise before a long computation if its result cannot be written: to a folder, or in a missing folder."""
    path = Path(os.path.realpath(output))
    if output != STANDARD_OUTPUT and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigurationError(f"output must be a file in an existing folder, got {output}")


def check_no_input(output: str, inputs: Iterable[str]) -> None:
    """Refuse to replace one of the files that the result is made from."""
    if output == STANDARD_OUTPUT or not os.path.exists(output):
        return
    if any(os.path.samefile(output, one) for one in inputs):
        raise ConfigurationError(f"output must be another file than the images, got {output}")


def write_output(output: str, text: str) -> None:
    """Write a result in UTF-8. A file is replaced atomically, following links.

    Raises:
        ConfigurationError: If the file cannot be written.
    """
    content = text.encode(errors="replace")  # file names may not be valid Unicode
    if output == STANDARD_OUTPUT:
        _print(printable(text).encode(errors="replace"))
        return
    check_output(output)
    path = Path(os.path.realpath(output))
    try:
        if path.exists() and not path.is_file():  # a device such as /dev/null must not be replaced
            path.write_bytes(content)
            return
        with atomic_write(path) as partial:
            partial.write_bytes(content)
    except PermissionError as error:
        raise ConfigurationError(f"output must be a file that can be written, got {output}: {error}") from error


def _print(content: bytes) -> None:
    """Write UTF-8 to standard output, independent of the locale."""
    sys.stdout.flush()
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:  # in a notebook
        sys.stdout.write(content.decode())
