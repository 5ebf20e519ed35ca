"""One-line messages about errors in another process of a run, instead of tracebacks."""

import re
from traceback import walk_tb

from torch.multiprocessing.spawn import ProcessException

from ddn_lightning.errors import ConfigurationError

CONNECTION = re.compile(r"Connection (closed|reset|refused)( by peer)?|Broken pipe|[Tt]imed out|remote process")
RESUME = "if it has saved a checkpoint, the same command resumes from it with its --name and --ckpt_path last"


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
