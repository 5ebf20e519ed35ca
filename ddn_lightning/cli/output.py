"""Writes a command's result to a file, a device, a pipe or standard output."""

import errno
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.notes import printable
from ddn_lightning.runs.files import atomic_write, naming

STANDARD_OUTPUT = "-"
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # do not wait for the reader of a pipe


def is_standard_output(output: str) -> bool:
    """Whether a name means standard output: ``-``, or a path such as ``/dev/stdout``."""
    if output == STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(os.stat(output), os.fstat(1))
    except OSError:
        return False


def check_output(output: str) -> None:
    """Check before a long computation that its result can be written.

    Raises:
        ConfigurationError: For a folder, a file in a missing folder, a socket or a disk.
    """
    if output == STANDARD_OUTPUT:
        return
    mode = _mode(output)
    is_folder_there = mode is not None or os.path.isdir(os.path.dirname(os.path.realpath(output)))
    if not is_folder_there or (mode is not None and stat.S_ISDIR(mode)):
        raise ConfigurationError(f"output must be a file in an existing folder, got {output}")
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise ConfigurationError(f"output must be a file, a pipe or a device such as /dev/null, got {output}")


def check_no_input(output: str, inputs: Iterable[str]) -> None:
    """Refuse to replace one of the files that the result is made from."""
    if output == STANDARD_OUTPUT or not os.path.exists(output):
        return
    if any(os.path.samefile(output, one) for one in inputs):
        raise ConfigurationError(f"output must be another file than the images, got {output}")


def write_output(output: str, text: str) -> None:
    """Write a result in UTF-8: replace a file atomically, following links; write into a device or pipe.

    Raises:
        ConfigurationError: If writing is not permitted, or if a pipe has no reader.
    """
    check_output(output)
    if is_standard_output(output):
        _print(printable(text).encode(errors="replace"))
        return
    content = text.encode(errors="replace")  # file names may not be valid Unicode
    mode = _mode(output)
    try:
        if mode is None or stat.S_ISREG(mode):
            with atomic_write(Path(os.path.realpath(output))) as partial:
                partial.write_bytes(content)
        else:
            with naming(Path(output)), open(os.open(output, os.O_WRONLY | NO_WAITING), "wb") as file:
                if NO_WAITING:
                    os.set_blocking(file.fileno(), True)
                file.write(content)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise ConfigurationError(f"output must be a pipe with a reader, got {output}") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise ConfigurationError(f"output must be a file that can be written, got {output}: {error}") from error
        raise


def _mode(output: str) -> int | None:
    """The ``st_mode`` of a path; ``None`` if it does not exist."""
    try:
        return os.stat(output).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"output must be a file that can be written, got {output}: {error}") from error


def _print(content: bytes) -> None:
    """Write UTF-8 to standard output, independent of the locale."""
    sys.stdout.flush()
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:  # in a notebook
        sys.stdout.write(content.decode())
