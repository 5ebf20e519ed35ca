"""The loggers of a run."""

from importlib.util import find_spec

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from ddn_lightning.runs.curve_logger import CurveLogger
from ddn_lightning.runs.run_folder import RunFolder


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
