"""The message of an error in a fit or an evaluation that the user can correct."""

from pathlib import Path
from traceback import walk_tb

import torch

from ddn_lightning.cli.lost_process import mistake_in_a_process
from ddn_lightning.core.start_checks import TOO_FEW_VALUES, single_image
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.lightning_internals import is_restoring
from ddn_lightning.runs.recorded_run import CONFIG_FILE

NO_GPU = "No supported gpu backend found"  # Lightning's error
NO_MEMORY = "can't allocate memory"  # in torch's RuntimeError on a CPU


def user_mistake(
    error: Exception, folder: Path | None, has_begun: bool, batch_size: int, checkpoint: str | None
) -> str | None:
    """The message; ``None`` for an error that the user cannot correct, or whose message is good.

    Args:
        error: What was raised.
        folder: The run folder, if there is one.
        has_begun: Whether training has begun.
        batch_size: That of the data.
        checkpoint: The checkpoint to restore, if any.
    """
    if (mistake := mistake_in_a_process(error)) is not None:
        return mistake
    is_of_checkpoint = isinstance(error, ConfigurationError) and str(error).startswith("the checkpoint's ")
    if is_restoring(error) or is_of_checkpoint:
        return _misfit(error, checkpoint)
    if isinstance(error, ConfigurationError):
        return None
    if NO_GPU in str(error):
        return "trainer.accelerator gpu needs a GPU, and torch finds none: pass --trainer.accelerator cpu"
    *_, (last, _) = walk_tb(error.__traceback__)
    is_lightnings = str(last.f_globals.get("__name__")).startswith("lightning.")
    if isinstance(error, ValueError | TypeError) and not has_begun and is_lightnings:
        return str(error)
    if isinstance(error, OSError) and has_begun and folder is not None and not (folder / CONFIG_FILE).exists():
        return f"{folder} was deleted while this run was training in it"
    if TOO_FEW_VALUES in str(error):
        return single_image(batch_size)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or NO_MEMORY in str(error):
        reason = str(error).partition("\n")[0]
        return f"there is not enough memory: lower buffer_size, batch_size or the network's width ({reason})"
    return None


def _misfit(error: Exception, checkpoint: str | None) -> str:
    """The message about a checkpoint that cannot be restored."""
    if isinstance(error, ConfigurationError):
        return f"{checkpoint}: {error}"
    reason = " ".join(line.strip() for line in str(error).splitlines()[:2])[:300]
    return f"{checkpoint} does not fit: another network or distiller, or damaged ({type(error).__name__}: {reason})"
