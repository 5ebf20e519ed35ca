"""The ``ddn`` command: what it runs, and its exit codes."""

import contextlib
import errno
import io
import logging
import os
import shlex
import signal
import sys
import warnings

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from ddn_lightning.callbacks.stop_signals import Interrupted
from ddn_lightning.cli.bench_command import bench
from ddn_lightning.cli.compare_command import compare
from ddn_lightning.cli.fit_command import DDNCommand
from ddn_lightning.cli.lost_process import loss_of_a_process
from ddn_lightning.cli.parser import DDNParser
from ddn_lightning.cli.predict_command import predict
from ddn_lightning.cli.report_command import report
from ddn_lightning.cli.reproduce_command import reproduce
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError, DivergenceError, SavingError
from ddn_lightning.methods.replay_method import ReplayMethod

EXPECTED_WARNINGS = (
    ".*isinstance.treespec, LeafSpec",  # Lightning 2.6.6 on torch 2.15
    "`torch.jit.script` is deprecated",  # torch 2.15's own forward-mode derivatives
    "LightningCLI's args parameter is intended to run from within Python",  # as the tests and notebooks do
    "The dirpath has changed",  # a run may be resumed or evaluated under another name
    "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",  # evaluating needs no RunRecord
)
EPILOG = (
    "'ddn predict --help': classes of images by a trained method; "
    "'ddn report --help': a page of runs; 'ddn compare --help': differences between runs, paired by seed; "
    "'ddn reproduce --help': all runs of a table of the DDN paper; "
    "'ddn bench --help': what a step costs on this machine"
)
DIVERGED = 3  # the exit code
HERE = ""  # how Python writes the current folder
BROKEN_PIPE = 13  # SIGPIPE, which Windows does not have
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 1: a file could not be written, or a run of ``ddn reproduce`` failed. 2: a mistake in what was asked for.
    3: training diverged; what it had measured and its last good checkpoint are kept. 128 plus the number of a signal:
    stopped by it.
    """
    _be_quiet()
    _print_whatever_the_locale()
    if HERE not in sys.path:
        sys.path.append(HERE)  # one's own der.py, as with python -m; last, so that it hides no installed module
    arguments = sys.argv[1:] if args is None else args
    try:
        return _run(arguments, args)
    except (ValueError, MisconfigurationException) as error:
        mistake = _mistake_behind(error)
        if mistake is None:
            raise
        return _say(f"error: {mistake}", 2)
    except DivergenceError as error:
        return _say_what_diverged(error)
    except SIGTERMException:  # before there was anything to save
        return 128 + signal.SIGTERM
    except Interrupted as stop:
        return _print_resume_command(stop, arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _end_quietly()
    except OSError as error:
        is_saving = isinstance(error, SavingError) or error.errno in DISK_IS_FULL
        if not is_saving and error.filename is None:
            raise
        return _say(f"error: {error}", 1 if is_saving else 2)
    except Exception as error:
        if (loss := loss_of_a_process(error)) is None:
            raise
        return _say(f"error: {loss}", 1)


def _run(arguments: list[str], args: list[str] | None) -> int:
    commands = {"predict": predict, "reproduce": reproduce, "report": report, "compare": compare, "bench": bench}
    try:
        if arguments and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:])
        DDNCommand(
            ReplayMethod,
            TaskSequence,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            seed_everything_default=0,
            trainer_defaults={"max_epochs": -1},  # the data module knows how many
            parser_class=DDNParser,
            parser_kwargs={"epilog": EPILOG},
            args=args,
        )
        return 0
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # here, not at Python's end, where a closed pipe cannot be handled


def _say(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _print_whatever_the_locale() -> None:
    """Print a question mark for what the locale has no letter for, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _end_quietly() -> int:
    """Stop as other programs do when nobody reads their output any more, as with ``| head``."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
    return 128 + BROKEN_PIPE


def _be_quiet() -> None:
    """Leave out what Lightning says to everyone."""
    for chatty in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # which processes it ends with another
    for expected in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=expected)


def _say_what_diverged(error: DivergenceError) -> int:
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return 0  # as below
    print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    return DIVERGED


def _print_resume_command(stop: Interrupted, args: list[str]) -> int:
    """The command that continues, and the exit code: not zero, as there is more to do."""
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return 0  # the first rank tells; Lightning would take this one for crashed and kill it
    kept = _without(_without(args, "--name"), "--ckpt_path")
    command = shlex.join(["ddn", *kept, "--name", str(stop.run), "--ckpt_path", "last"])
    print(f"stopped by {stop.signal_name}, saved in {stop.checkpoint}; go on with\n{command}", file=sys.stderr)
    return int(stop.code or 0)


def _without(args: list[str], option: str) -> list[str]:
    """The arguments without an option and its value.

    >>> _without(["fit", "--name", "first", "--seed_everything=1"], "--name")
    ['fit', '--seed_everything=1']
    """
    pairs = zip([None, *args], args, strict=False)
    return [word for before, word in pairs if option not in (before, word) and not word.startswith(f"{option}=")]


def _mistake_behind(error: BaseException | None) -> BaseException | None:
    """The user's mistake that led to an error; jsonargparse wraps what a constructor raises."""
    while error is not None and not isinstance(error, ConfigurationError | MisconfigurationException):
        error = error.__cause__
    return error
