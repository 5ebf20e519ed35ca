"""The files in a run folder, written and read here: configuration, results, curves, observations."""

from ddn_lightning.runs.curve_logger import CurveLogger
from ddn_lightning.runs.recorded_run import RecordedRun, read_run
from ddn_lightning.runs.results import Results

__all__ = ["CurveLogger", "RecordedRun", "Results", "read_run"]
