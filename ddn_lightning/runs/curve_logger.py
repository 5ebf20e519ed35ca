"""A CSV logger whose file survives a restart."""

import csv
import io
from itertools import islice
from pathlib import Path

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from ddn_lightning.runs.files import naming, write_text


class CurveLogger(CSVLogger):
    """Lightning's ``CSVLogger``, except that a run which goes on also goes on with its ``metrics.csv``.

    Lightning's own deletes the file. Here :class:`LoggedCurves` cuts it back to what a checkpoint knows of. Arguments
    are those of ``CSVLogger``.
    """

    _experiment: "_CurveWriter | None"

    @property
    @rank_zero_experiment
    def experiment(self) -> "_CurveWriter":
        """What writes the file; nothing on any rank but the first."""
        if self._experiment is None:
            self._experiment = _CurveWriter(self.log_dir)
        return self._experiment


class _CurveWriter(ExperimentWriter):
    """Appends rows; whatever else happens to the file happens to it as a whole."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self.metrics_keys, written = self._read()
        self.rows = len(written)  # logged since the beginning of the run

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Record a row."""
        super().log_metrics(metrics_dict, step)
        self.rows += 1

    def save(self) -> None:
        """Write what was recorded; a full disk is named with the file."""
        with naming(Path(self.metrics_file_path)):
            super().save()

    def keep(self, rows: int) -> None:
        """Leave only the first rows of the file that is there, as an earlier start of the same run has written it."""
        header, kept = self._read(rows)
        self.rows = len(kept)
        self.metrics_keys = header if kept else []
        if kept:
            self._write(kept)
        else:
            Path(self.metrics_file_path).unlink(missing_ok=True)

    def rows_before(self, step: int) -> int:
        """How many rows there are of earlier steps."""
        return sum((row.get("step") or "").isdecimal() and int(row["step"]) < step for row in self._read()[1])

    def _check_log_dir_exists(self) -> None:
        """Lightning's deletes the file here."""

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
        write_text(Path(self.metrics_file_path), _as_csv(self.metrics_keys, rows))


def _as_csv(header: list[str], rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, header, extrasaction="ignore")  # a row that was cut short may be anything
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
