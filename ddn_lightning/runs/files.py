"""Files that are there as a whole or not at all, and that are read only if they are files."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddn_lightning.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # on Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

MOST_BYTES = 2**28  # of a file that is read at once; a run's curves are the largest, some MB


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write to the path that is given here; only once that is complete does it take the place of the file.

    Killed at any moment, the old file or the new one is there. If writing fails, the old one is, and the error names
    the file: the system does not say which one it had no space for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    with naming(path):
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())  # before the name points to it, or a power cut may leave an empty file
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file to an error of the system that names none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def partial_path(path: Path) -> Path:
    """Where a file is written until it is complete: in its own folder, as a rename across devices is a copy."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Write a text file, as a whole, whatever the locale."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file. Anything else of that name is refused at once: a pipe would be waited for forever.

    Raises:
        ValueError: If it is no regular file, or larger than ``most_bytes``.
        OSError: If it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes} bytes")
    return content


def is_pipe(name: str) -> bool:
    """Whether a name leads to a pipe; a text that can be no name does not."""
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False


def check_writable(folder: Path) -> None:
    """Find out now, not at the first checkpoint, that nothing can be written to a folder; leaves nothing there.

    Raises:
        ConfigurationError: If nothing can.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"{folder} must be a folder that can be written to: {error.strerror}") from error


def try_lock(path: Path) -> int | None:
    """Lock a file or folder for this process, until the descriptor is closed; ``None`` if another one has locked it.

    Without effect where there are no such locks, as on Windows.
    """
    if not HAS_LOCKS:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.open(path, os.O_RDONLY)
    if lock_open(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def lock_open(descriptor: int) -> bool:
    """Lock an open file for this process and all that inherit it; false if another one has locked it."""
    if not HAS_LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
