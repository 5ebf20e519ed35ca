"""Atomic writes, bounded reads and locks."""

import errno
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

NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of a file system without locks, as on some clusters
MOST_BYTES = 2**28  # limit for a file read at once; a run's curves, the largest, take some MB


@contextmanager
def atomic_write(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yield a partial path to write to, and rename it to the final path when the block completes.

    A process killed at any moment leaves the old file or the new one. If writing fails, the old file stays and the
    error names it, which the system's error on a full disk does not.

    Args:
        path: The file to replace.
        partial: Where to write; ``None`` for :func:`partial_path`, which is not safe for concurrent writers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial or partial_path(path)
    with naming(path):
        try:
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())  # before the rename: otherwise a power cut may leave an empty file
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to an ``OSError`` that has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def partial_path(path: Path) -> Path:
    """Where a file is written until it is complete: in the same folder, because a rename must not cross devices."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file. Reading a pipe would block forever.

    Raises:
        ValueError: If it is not a regular file, or larger than ``most_bytes``.
        OSError: If it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes} bytes")
    return content


def is_pipe(name: str) -> bool:
    """Whether a string is the path of a named pipe."""
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False


def check_writable(folder: Path) -> None:
    """Raise a :class:`ConfigurationError` unless files can be created in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"{folder} must be a folder that can be written to: {error.strerror}") from error


def try_lock(path: Path) -> int | None:
    """Lock a file or folder and return its descriptor, or ``None`` if another process holds the lock.

    Closing the descriptor releases the lock. On Windows, and on file systems without such locks, this
    does nothing.
    """
    descriptor = os.open(path if HAS_LOCKS else os.devnull, os.O_RDONLY)
    if lock_open(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file or folder, if it exists."""
    if not path.exists():
        return False
    descriptor = try_lock(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def lock_open(descriptor: int) -> bool:
    """Lock an open file for this process and its children; false if another process holds the lock."""
    if not HAS_LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
    return True
