import errno
import os
from pathlib import Path

import pytest

from ddn_lightning.runs.files import atomic_write, is_locked, write_text


def test_a_file_is_replaced_only_once_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.txt"
    write_text(path, "old\r\n")
    with atomic_write(path) as partial:
        partial.write_text("new")
        assert path.read_bytes() == b"old\r\n"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    def run_out_of_space(partial: Path) -> None:
        partial.write_text("ne")
        raise OSError("no space")

    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(OSError, match="no space"), atomic_write(path) as partial:
        run_out_of_space(partial)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_locks_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", lambda *_: refuse(errno.ENOSYS))
    assert not is_locked(tmp_path)
    monkeypatch.setattr("fcntl.flock", lambda *_: refuse(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        is_locked(tmp_path)
