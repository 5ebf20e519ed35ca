"""The run folder: created at the start, locked while in use, removed if training never begins."""

import os
import shutil
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.files import partial_path, try_lock
from ddn_lightning.runs.recorded_run import CONFIG_FILE, CURVES_FILE
from ddn_lightning.runs.results import MATRIX_FILE, RESULTS_FILE, read_divergence

CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
BEFORE_FIRST_CHECKPOINT = {CONFIG_FILE, "hparams.yaml", CURVES_FILE}
OF_DIVERGED = {RESULTS_FILE, MATRIX_FILE}
TENSORBOARD = "events.out.tfevents."  # prefix of its files


class RunFolder:
    """A folder that one process at a time may write to.

    Args:
        path: The folder.
        is_new: Whether it was created for this run.
    """

    def __init__(self, path: Path, is_new: bool = False) -> None:
        self.path = path
        self.is_new = is_new
        self._lock: int | None = None

    @classmethod
    def make(
        cls, runs: Path, name: str | None, default_name: str, checkpoint: Path | None, is_auto: bool
    ) -> "RunFolder":
        """Create and lock the folder, so that two runs that start together cannot use the same one.

        Args:
            runs: Parent folder of all runs.
            name: Name of the run; ``None`` for the default name, with a number if that is taken.
            default_name: The default name.
            checkpoint: The checkpoint to resume from; if it is in the folder, the folder may exist.
            is_auto: Whether to replace the files of a run that was killed before its first checkpoint.
        """
        try:
            runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"runs must be a folder that can be created, got {runs}: {error}") from error
        path = runs / (name or default_name)
        number = 1
        while not (is_new := _make(path)):
            if name is None:
                number += 1
                path = runs / f"{default_name}-{number}"
            elif checkpoint is not None and path.resolve() in checkpoint.resolve().parents:
                break
            elif is_auto and _is_abandoned(path):
                return cls(path, is_new=True).locked().emptied()
            else:
                raise ConfigurationError(
                    f"name must be new, but {path} exists already: choose another one, delete the folder, or resume "
                    "from its last checkpoint with --ckpt_path last"
                )
        return cls(path, is_new).locked()

    def locked(self) -> "RunFolder":
        """Lock the folder; raise if another process holds the lock."""
        self._lock = try_lock(self.path)
        if self._lock is None:
            raise ConfigurationError(f"{self.path} is in use: another process is training this run")
        return self

    def emptied(self) -> "RunFolder":
        """Remove the contents, but not the folder: it may be a link, and is locked."""
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        return self

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove_if_unused(self) -> None:
        """Remove a new folder if training has not begun in any process."""
        if self.is_new and not (self.path / CONFIG_FILE).exists():
            shutil.rmtree(self.path, ignore_errors=True)


def _make(path: Path) -> bool:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise ConfigurationError(f"{path} must be a folder, but it is a file") from None
        return False
    except OSError as error:
        raise ConfigurationError(f"name must give a folder that can be created, got {path}: {error}") from error
    return True


def _is_abandoned(path: Path) -> bool:
    """Whether a folder contains only files of a run that was killed or diverged before its first checkpoint."""
    names = [entry.relative_to(path).as_posix() for entry in path.rglob("*")]
    written = {CHECKPOINTS, partial_path(Path(CHECKPOINTS, LAST)).as_posix()}
    files = BEFORE_FIRST_CHECKPOINT | (OF_DIVERGED if read_divergence(path) is not None else set())
    written |= files | {partial_path(Path(name)).as_posix() for name in files}
    return all(name in written or name.startswith(TENSORBOARD) for name in names)
