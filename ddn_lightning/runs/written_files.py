"""``files.json``: which files of a folder a command wrote itself."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.files import read_regular, write_text

FILES_FILE = "files.json"
WRITER = {"written_by": "ddn_lightning"}


class WrittenFiles:
    """The record of the files that a command wrote in a folder, so that it never replaces a file of the user.

    A file is recorded by name and SHA-256 checksum, or without a checksum while a process is writing it. A file that
    is not recorded, was changed since, or is a link belongs to the user.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILES_FILE

    def is_own(self, name: str) -> bool:
        """Whether the file of this name is as recorded."""
        recorded, path = self._read(), self.folder / name
        if name not in recorded or path.is_symlink() or not path.is_file():
            return False
        return recorded[name] in (None, _checksum(path))

    def is_complete(self, name: str) -> bool:
        """Whether the file of this name is as recorded, and no process was writing it."""
        return self.is_own(name) and self._read()[name] is not None

    def check(self, names: Iterable[str]) -> None:
        """Raise a :class:`ConfigurationError` if one of these files exists and belongs to the user."""
        has_record = self.path.is_symlink() or self.path.exists()
        if has_record and (self.path.is_symlink() or self._content() != self._text(self._read())):
            raise ConfigurationError(belongs_to_user(self.path))
        for name in names:
            path = self.folder / name
            if (path.is_symlink() or path.exists()) and not self.is_own(name):
                raise ConfigurationError(belongs_to_user(path))

    def begin(self, names: Iterable[str]) -> None:
        """Record that a process may be writing these files."""
        self._write({**self._read(), **dict.fromkeys(names)})

    def finish(self, names: Iterable[str] | None = None) -> None:
        """Record the checksums of these files, or of all recorded ones; forget those that do not exist."""
        recorded = self._read()
        for name in [*recorded] if names is None else names:
            path = self.folder / name
            if path.is_file():
                recorded[name] = _checksum(path)
            else:
                recorded.pop(name, None)
        self._write(recorded)

    def _content(self) -> str:
        try:
            return read_regular(self.path).decode()
        except (OSError, ValueError):
            return ""

    def _read(self) -> dict[str, str | None]:
        try:
            found = json.loads(self._content())
            return dict(found["files"]) if WRITER.items() <= found.items() else {}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self, files: Mapping[str, str | None]) -> None:
        if (text := self._text(files)) != self._content():
            write_text(self.path, text)

    @staticmethod
    def _text(files: Mapping[str, str | None]) -> str:
        return json.dumps({**WRITER, "files": dict(files)}, indent=1) + "\n"


def belongs_to_user(path: Path) -> str:
    """The message about a file that is not to be replaced."""
    return f"{path} was not written by a run here, or was changed since: move it, or choose another name"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
