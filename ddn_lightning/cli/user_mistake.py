"""One-line messages about errors in a fit or an evaluation: mistakes of the user, and other processes that are lost."""

import re
from pathlib import Path
from traceback import walk_tb

import torch
from torch.multiprocessing.spawn import ProcessException

from ddn_lightning.core.start_checks import TOO_FEW_VALUES, single_image
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.lightning_internals import is_restoring
from ddn_lightning.runs.recorded_run import CONFIG_FILE

CONNECTION = re.compile(r"Connection (closed|reset|refused)( by peer)?|Broken pipe|[Tt]imed out|remote process")
RESUME = "if it has saved a checkpoint, the same command resumes from it with its --name and --ckpt_path last"
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


def loss_of_a_process(error: BaseException) -> str | None:
    """The message about a lost process; ``None`` for any other error.

    The parent process learns how the lost process has ended; the other ranks see a broken connection.
    """
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, ProcessException) and "Traceback" not in str(error):
        return f"{lines[-1]}; {RESUME}"
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    is_distributed = isinstance(error, ProcessException) or any(m.startswith("torch.distributed") for m in modules[-1:])
    if is_distributed and (found := CONNECTION.search(lines[-1])):
        return f"another process of this run is gone ({found[0]}); {RESUME}"
    return None


def mistake_in_a_process(error: BaseException) -> str | None:
    """The message of the :class:`ConfigurationError` that ended another process; ``None`` for any other error."""
    name = f"{ConfigurationError.__module__}.{ConfigurationError.__name__}: "
    last = str(error).strip().rpartition("\n")[2]
    return last.removeprefix(name) if isinstance(error, ProcessException) and last.startswith(name) else None
