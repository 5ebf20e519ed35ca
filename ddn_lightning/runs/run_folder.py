"""The run folder: locked while in use, and changed only where a run wrote itself."""

import os
from contextlib import suppress
from itertools import product
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.anytime import ANYTIME_FILE
from ddn_lightning.runs.files import check_writable, partial_path, try_lock, write_text
from ddn_lightning.runs.observed import OBSERVATIONS_FILE
from ddn_lightning.runs.recorded_run import CONFIG_FILE, CURVES_FILE
from ddn_lightning.runs.results import MATRIX_FILE, RESULTS_FILE, read_divergence, read_result, read_stop
from ddn_lightning.runs.written_files import FILES_FILE, WrittenFiles, belongs_to_user

CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
FIGURES_FOLDER = "figures"
FIGURES = (
    *("task_accuracy", "accuracy_matrix", "anytime", "confusion", "probability", "stream", "memory", "samples"),
    *("soft_labels", "label_entropy"),
)
HPARAMS_FILE = "hparams.yaml"
BY_LOGGERS = (HPARAMS_FILE, CURVES_FILE)  # before training begins
TENSORBOARD = "events.out.tfevents."  # prefix of its files
LAST_CHECKPOINT = f"{CHECKPOINTS}/{LAST}"
OF_DIVERGED = (RESULTS_FILE, MATRIX_FILE)
BEFORE_FIRST_CHECKPOINT = (CONFIG_FILE, *BY_LOGGERS)
ALL_FILES = (
    *BEFORE_FIRST_CHECKPOINT,
    *OF_DIVERGED,
    *(ANYTIME_FILE, OBSERVATIONS_FILE, LAST_CHECKPOINT),
    *(f"{FIGURES_FOLDER}/{name}{suffix}" for name, suffix in product(FIGURES, (".png", ".svg"))),
)


class RunFolder:
    """A folder that one process at a time may write to.

    Nothing is removed or replaced that a run did not write, and nothing at all before training begins: :meth:`claim`
    refuses a folder with a file in the way, :meth:`begin` empties it, and :meth:`release` undoes the claim of a run
    that never began.

    Args:
        path: The folder.
        is_new: Whether it was created for this run.
    """

    def __init__(self, path: Path, is_new: bool = False) -> None:
        self.path = path
        self.is_new = is_new
        self.written = WrittenFiles(path)
        self._lock: int | None = None
        self._before: dict[str, bytes | None] | None = None  # what a claim may change; None without a claim
        self._claimed: tuple[int, int] | None = None  # the record as the claim left it
        self._entries: set[Path] = set()  # when it was claimed
        self._leftovers: list[Path] = []

    @classmethod
    def make(
        cls, runs: Path, name: str | None, default_name: str, checkpoint: Path | None, is_auto: bool
    ) -> "RunFolder":
        """Create and claim the folder, so that two runs that start together cannot use the same one.

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
            elif checkpoint is not None and path.resolve() in checkpoint.resolve().parents and not is_finished(path):
                break
            elif is_auto:
                return cls(path).claim(starts_over=True)
            else:
                raise ConfigurationError(_is_taken(path))
        return cls(path, is_new).claim()

    def claim(self, starts_over: bool = False) -> "RunFolder":
        """Lock the folder, and refuse files in the way.

        Args:
            starts_over: Whether to empty the folder when training begins, which must be of a run that was killed or
                diverged before its first checkpoint.
        """
        self.locked()
        try:
            check_writable(self.path)
            if starts_over:
                self._leftovers = _files_of_abandoned(self.path)
            self.written.check(ALL_FILES)
            self._before = {name: _content(self.path / name) for name in (FILES_FILE, HPARAMS_FILE)}
            self._entries = set(self.path.iterdir())
            self.written.begin(BY_LOGGERS)
        except BaseException:
            self.release()
            raise
        self._claimed = _stamp(self.written.path)
        return self

    def locked(self) -> "RunFolder":
        """Lock the folder; raise if another process holds the lock."""
        self._lock = try_lock(self.path)
        if self._lock is None:
            raise ConfigurationError(f"{self.path} is in use: another process is training this run")
        return self

    def begin(self, config: str) -> None:
        """Remove what an abandoned run left, and write the configuration: training begins."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.written.begin([*ALL_FILES, *self._events()])
        for path in self._leftovers:
            path.unlink(missing_ok=True)
        if _content(self.path / CONFIG_FILE) != config.encode():
            write_text(self.path / CONFIG_FILE, config)
        self.written.finish([CONFIG_FILE])

    def release(self) -> None:
        """Record the files as they are, or undo a claim if training has not begun in any process; unlock."""
        if self._before is not None and self.path.is_dir():
            if self._claimed in (None, _stamp(self.written.path)):
                self._undo(self._before)
            else:
                with suppress(OSError):  # a disk may be full: the record without checksums stays
                    self.written.begin(self._events())
                    self.written.finish()
        self._before = None
        self.unlock()

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _events(self) -> list[str]:
        """TensorBoard's files that were made since the claim."""
        return [path.name for path in self.path.glob(f"{TENSORBOARD}*") if path not in self._entries]

    def _undo(self, before: dict[str, bytes | None]) -> None:
        """Remove what was made since the claim, and the folder if it is new and nothing else is in it."""
        for path in set(self.path.iterdir()) - self._entries:
            if path.name in (FILES_FILE, *BY_LOGGERS) or path.name.startswith(TENSORBOARD):
                path.unlink()
        for name, content in before.items():
            if content is not None and content != _content(self.path / name):
                write_text(self.path / name, content.decode())
        if self.is_new:
            with suppress(OSError):
                self.path.rmdir()


def is_finished(folder: Path) -> bool:
    """Whether a run has learned all its tasks and written all its files, and still has them; it is left as it is."""
    written = WrittenFiles(folder)
    return read_result(folder) is not None and all(map(written.is_complete, (RESULTS_FILE, LAST_CHECKPOINT)))


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


def _files_of_abandoned(path: Path) -> list[Path]:
    """The files to remove of a run that was killed or diverged before its first checkpoint.

    Raises:
        ConfigurationError: If anything else is in the folder.
    """
    if read_result(path) is not None or read_stop(path) is not None:
        raise ConfigurationError(f"{path} has results but no checkpoint: choose another name, or delete it")
    names = {*BEFORE_FIRST_CHECKPOINT, *(OF_DIVERGED if read_divergence(path) is not None else ())}
    partial = {partial_path(path / name) for name in (*names, FILES_FILE, LAST_CHECKPOINT)}
    written = WrittenFiles(path)
    found = []
    for entry in path.rglob("*"):
        name = entry.relative_to(path).as_posix()
        if name == FILES_FILE or (name == CHECKPOINTS and entry.is_dir()):
            continue
        is_log = name.startswith(TENSORBOARD)
        is_own = entry in partial or ((is_log or name in names) and written.is_own(name))
        if not is_own and not is_log:  # one that is not recorded is in nobody's way
            raise ConfigurationError(f"there is no checkpoint to resume from, and {belongs_to_user(entry)}")
        if is_own and name not in (CONFIG_FILE, HPARAMS_FILE):  # which are replaced
            found.append(entry)
    return found


def _is_taken(path: Path) -> str:
    return (
        f"name must be new, but {path} exists already: choose another one, delete the folder, or resume "
        "from its last checkpoint with --ckpt_path last"
    )


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
