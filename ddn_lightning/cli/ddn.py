"""The ``ddn`` command: dispatch to its subcommands, and exit codes."""

import contextlib
import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version

from ddn_lightning.cli.commands import COMMANDS, check_command, check_values, command, overview
from ddn_lightning.cli.completion import COMPLETION, words_before_cursor
from ddn_lightning.errors import ConfigurationError, SavingError, printable

EXPECTED_WARNINGS = (
    ".*isinstance.treespec, LeafSpec",  # Lightning 2.6.6 on torch 2.15
    "`torch.jit.script` is deprecated",  # torch's own forward-mode derivatives, 2.10 to 2.15
    "The given buffer is not writable",  # torch.export.load of torch 2.10
    "LightningCLI's args parameter is intended to run from within Python",  # tests and notebooks do that
    "The dirpath has changed",  # a run may be resumed or evaluated under another name
    "Found .* in eval mode at the start of training",  # a frozen backbone stays so
    "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",  # an evaluation has no RunRecord
)
READING = ("predict", "export", "test", "validate")  # commands that import nothing for the run that they read
IMPORTING = ("fit", "reproduce", "tune")  # commands that import the user's own modules from the current folder
BROKEN_PIPE = 13  # SIGPIPE, which Windows does not have
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: a file could not be written, or a run of ``ddn reproduce`` failed. 2: a user error. 3: training
    diverged; its results so far and its last good checkpoint are kept. 128 plus the number of a signal: stopped by it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print "?" for characters that the locale cannot encode
    arguments = sys.argv[1:] if args is None else args
    if COMPLETION in os.environ:
        arguments = args = words_before_cursor()
    try:
        return _run(arguments, args)
    except ConfigurationError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _close_broken_pipe()
    except OSError as error:
        is_saving = isinstance(error, SavingError) or error.errno in DISK_IS_FULL
        if not is_saving and error.filename is None:
            raise
        return _fail(str(error), 1 if is_saving else 2)


def _run(arguments: list[str], args: list[str] | None) -> int:
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(overview(), end="")
            return 0 if arguments else 2
        if arguments[0] == "--version":
            print(f"ddn_lightning {version('ddn-lightning')}")
            return 0
        check_command(arguments[0])
        check_values(arguments)
        with _imports_of(arguments) as arguments:
            if arguments[0] in COMMANDS:
                run = command(arguments[0])
                _silence_expected_messages()  # here: Lightning has set its level of messages
                return run(arguments[1:])
            from ddn_lightning.cli.trainer_command import train_or_evaluate  # here: it imports torch and Lightning

            _silence_expected_messages()
            return train_or_evaluate(arguments, args)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # here: at interpreter shutdown a closed pipe cannot be handled


@contextlib.contextmanager
def _imports_of(arguments: list[str]) -> Iterator[list[str]]:
    """The arguments, without modules to import; meanwhile a command finds those of the current folder."""
    if arguments[0] not in (*READING, *IMPORTING):
        yield arguments
        return
    from ddn_lightning.cli.imports import current_folder_on_path, without_imports  # here: these import torch

    if arguments[0] in READING:
        yield without_imports(arguments)
    else:
        with current_folder_on_path():
            yield arguments


def _fail(message: str, code: int) -> int:
    print(f"error: {printable(message)}", file=sys.stderr)
    return code


def _close_broken_pipe() -> int:
    """Exit like other programs whose reader is gone, for example with ``| head``."""
    with contextlib.suppress(OSError, ValueError):  # standard output may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports the pipe at shutdown
    return 128 + BROKEN_PIPE


def _silence_expected_messages() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it lists the processes that it ends
    for expected in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=expected)
