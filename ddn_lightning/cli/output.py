"""Where a command puts its result: a file, a device, a pipe, or standard output."""

import errno
import os
import stat
import sys
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.files import atomic_write, naming

STANDARD_OUTPUT = "-"
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # for somebody who reads a pipe


def is_standard_output(output: str) -> bool:
    """Whether a result goes to standard output: ``-``, or another name of it such as ``/dev/stdout``."""
    if output == STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(os.stat(output), os.fstat(1))
    except OSError:
        return False


def check_output(output: str) -> None:
    """Find out now, not after hours, that a result cannot be written there.

    Raises:
        ConfigurationError: For a folder, a file in none, a socket or a disk.
    """
    if output == STANDARD_OUTPUT:
        return
    mode = _mode(output)
    is_folder_there = mode is not None or os.path.isdir(os.path.dirname(os.path.realpath(output)))
    if not is_folder_there or (mode is not None and stat.S_ISDIR(mode)):
        raise ConfigurationError(f"output must be a file in an existing folder, got {output}")
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise ConfigurationError(f"output must be a file, a pipe or a device such as /dev/null, got {output}")


def write_output(output: str, text: str) -> None:
    """Write a result in UTF-8. A file is replaced as a whole, where links lead to; anything else is written into.

    Raises:
        ConfigurationError: If that is not allowed, or if nobody reads from a pipe.
    """
    check_output(output)
    content = text.encode(errors="replace")  # a name may be no text
    if is_standard_output(output):
        _print(content)
        return
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
            raise ConfigurationError(f"output must be a pipe that somebody reads from, got {output}") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise ConfigurationError(f"output must be a file that can be written, got {output}: {error}") from error
        raise


def _mode(output: str) -> int | None:
    """The kind of file that a name leads to, or ``None`` if there is none yet."""
    try:
        return os.stat(output).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"output must be a file that can be written, got {output}: {error}") from error


def _print(content: bytes) -> None:
    """Print what is UTF-8, whatever the terminal claims to understand: it may well be a pipe or a file."""
    sys.stdout.flush()
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:  # in a notebook
        sys.stdout.write(content.decode())
