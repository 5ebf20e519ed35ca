"""Files that are there as a whole or not at all."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the path that is given here; only once that is complete does it take the place of the file.

    Killed at any moment, the old file or the new one is there. If writing fails, the old one is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # before the name points to it, or a power cut may leave an empty file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """Where a file is written until it is complete: in its own folder, as a rename across devices is a copy."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Write a text file, as a whole."""
    with replacing(path) as partial:
        partial.write_text(text, newline="")


def try_lock(path: Path) -> int | None:
    """Lock a file or folder for this process, until the descriptor is closed; ``None`` if another one has locked it.

    Without effect on Windows.
    """
    if sys.platform == "win32":
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
