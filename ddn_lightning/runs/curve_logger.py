"""A CSV logger that continues its file after a resume."""

import csv
import io
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from ddn_lightning.runs.files import naming, write_text
from ddn_lightning.runs.run_folder import RunFolder


class CurveLogger(CSVLogger):
    """Lightning's ``CSVLogger``, except that a resumed run continues its ``metrics.csv``.

    Lightning's own deletes the file. Here :class:`LoggedCurves` truncates it to the rows that the checkpoint has
    recorded. Arguments are those of ``CSVLogger``.
    """

    _experiment: "_CurveWriter | None"

    @property
    @rank_zero_experiment
    def experiment(self) -> "_CurveWriter":
        """The writer of the file; a dummy on all ranks but the first."""
        if self._experiment is None:
            self._experiment = _CurveWriter(self.log_dir)
        return self._experiment


class _CurveWriter(ExperimentWriter):
    """Appends rows; any other change rewrites the file atomically."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self.metrics_keys, written = self._read()
        self.rows = len(written)  # logged since the start of the run

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Write the hyper-parameters; an error names the file."""
        with naming(Path(self.log_dir) / self.NAME_HPARAMS_FILE):
            super().log_hparams(params)

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Record a row."""
        super().log_metrics(metrics_dict, step)
        self.rows += 1

    def save(self) -> None:
        """Append the recorded rows; an error names the file."""
        with naming(Path(self.metrics_file_path)):
            super().save()

    def keep(self, rows: int) -> None:
        """Truncate the file, written by an earlier start of the same run, to its first rows."""
        header, kept = self._read(rows)
        self.rows = len(kept)
        self.metrics_keys = header if kept else []
        if kept:
            self._write(kept)
        else:
            Path(self.metrics_file_path).unlink(missing_ok=True)

    def rows_before(self, step: int) -> int:
        """The number of rows of earlier steps."""
        return sum((row.get("step") or "").isdecimal() and int(row["step"]) < step for row in self._read()[1])

    def _check_log_dir_exists(self) -> None:
        """Do nothing, where Lightning's deletes the file."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self._write(self._read()[1])

    def _read(self, rows: int | None = None) -> tuple[list[str], list[dict[str, str]]]:
        if not Path(self.metrics_file_path).is_file():
            return [], []
        with open(self.metrics_file_path, newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.DictReader(file)
            kept = list(islice(reader, rows))
            return list(reader.fieldnames or ()), kept

    def _write(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.metrics_keys, extrasaction="ignore")  # a truncated row may have odd keys
        writer.writeheader()
        writer.writerows(rows)
        write_text(Path(self.metrics_file_path), text.getvalue())


def run_loggers(folder: RunFolder, purge_step: int | None) -> list[Logger]:
    """CSV, and TensorBoard if it is installed; both write directly to the run folder.

    Args:
        folder: The run folder.
        purge_step: The step from which a resumed run replaces TensorBoard's curves.
    """
    parent, name = folder.path.parent, folder.path.name
    loggers: list[Logger] = [CurveLogger(parent, name, version="")]
    if find_spec("tensorboard"):
        loggers.append(TensorBoardLogger(parent, name, version="", purge_step=None if folder.is_new else purge_step))
    return loggers
