"""The ``ddn`` command: dispatch to its subcommands, and exit codes."""

import contextlib
import errno
import io
import logging
import os
import shlex
import signal
import sys
import warnings
from importlib.metadata import version
from itertools import takewhile

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from ddn_lightning.callbacks.stop_signals import Interrupted
from ddn_lightning.cli.commands import COMMANDS, TRAINER_COMMANDS, check_command, check_values, overview
from ddn_lightning.cli.completion import words_before_cursor
from ddn_lightning.cli.evaluate_command import evaluate
from ddn_lightning.cli.fit_command import DDNCommand
from ddn_lightning.cli.grow import grown_arguments, is_growing
from ddn_lightning.cli.imports import check_class_paths, check_run_configs, current_folder_on_path, without_imports
from ddn_lightning.cli.lost_process import loss_of_a_process
from ddn_lightning.cli.parser import COMPLETION, DDNParser
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.deploy.load import find_checkpoint
from ddn_lightning.errors import ConfigurationError, DivergenceError, SavingError
from ddn_lightning.notes import printable
from ddn_lightning.runs.recorded_run import CONFIG_FILE

EXPECTED_WARNINGS = (
    ".*isinstance.treespec, LeafSpec",  # Lightning 2.6.6 on torch 2.15
    "`torch.jit.script` is deprecated",  # torch's own forward-mode derivatives, 2.10 to 2.15
    "The given buffer is not writable",  # torch.export.load of torch 2.10
    "LightningCLI's args parameter is intended to run from within Python",  # tests and notebooks do that
    "The dirpath has changed",  # a run may be resumed or evaluated under another name
    "Found .* in eval mode at the start of training",  # a frozen backbone stays so
    "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",  # an evaluation has no RunRecord
)
DIVERGED = 3  # exit code
READING = ("predict", "export", "test", "validate")  # commands that import nothing for the run that they read
IMPORTING = ("fit", "reproduce", "tune")  # commands that import the user's own modules from the current folder
NOT_OF_A_TEST = ("logger=false", "callbacks=null", "profiler=null", "plugins=null", "default_root_dir=null")
BROKEN_PIPE = 13  # SIGPIPE, which Windows does not have
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: a file could not be written, or a run of ``ddn reproduce`` failed. 2: a user error. 3: training
    diverged; its results so far and its last good checkpoint are kept. 128 plus the number of a signal: stopped by it.
    """
    _silence_expected_messages()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print "?" for characters that the locale cannot encode
    arguments = sys.argv[1:] if args is None else args
    if COMPLETION in os.environ:
        arguments = args = words_before_cursor()
    try:
        with current_folder_on_path() if set(arguments[:1]) & set(IMPORTING) else contextlib.nullcontext():
            return _run(arguments, args)
    except (ValueError, MisconfigurationException) as error:
        mistake = _user_error(error)
        if mistake is None:
            raise
        return _fail(str(mistake), 2)
    except DivergenceError as error:
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return 0  # see _print_resume_command
        return _fail("\n".join([str(error), *getattr(error, "__notes__", ())]), DIVERGED)
    except SIGTERMException:  # before the first batch
        return 128 + signal.SIGTERM
    except Interrupted as stop:
        return _print_resume_command(stop, arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _close_broken_pipe()
    except OSError as error:
        is_saving = isinstance(error, SavingError) or error.errno in DISK_IS_FULL
        if not is_saving and error.filename is None:
            raise
        return _fail(str(error), 1 if is_saving else 2)
    except Exception as error:
        if (loss := loss_of_a_process(error)) is None:
            raise
        return _fail(loss, 1)


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
        if arguments[0] in READING:
            arguments = without_imports(arguments)
        if arguments[0] in COMMANDS:
            return COMMANDS[arguments[0]][0](arguments[1:])
        if arguments[:1] == ["test"] and (words := list(takewhile(lambda word: word[:1] != "-", arguments[1:]))):
            if len(words) > 1:
                return evaluate(arguments[1:])
            arguments = ["test", *_options_of(words[0]), *arguments[2:]]
        if arguments[0] in READING:
            check_run_configs(arguments)
            args = arguments
        if arguments[:1] == ["fit"] and is_growing(arguments):
            args = grown_arguments(arguments)
        DDNCommand(
            ReplayMethod,
            TaskSequence,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            seed_everything_default=0,
            trainer_defaults={"max_epochs": -1},  # the data module sets the number
            parser_class=DDNParser,
            args=args,
            commands=arguments[:1] if arguments[0] in TRAINER_COMMANDS else TRAINER_COMMANDS,
        )
        return 0
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # here: at interpreter shutdown a closed pipe cannot be handled


def _options_of(run: str) -> list[str]:
    """The options that evaluate a run on its own data, without what its configuration has a Trainer write."""
    checkpoint = find_checkpoint(run)
    config = checkpoint.parent.parent / CONFIG_FILE
    check_class_paths(config)
    return ["-c", str(config), "--ckpt_path", str(checkpoint), *(f"--trainer.{option}" for option in NOT_OF_A_TEST)]


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


def _print_resume_command(stop: Interrupted, args: list[str]) -> int:
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return 0  # the first rank prints; after another code Lightning would take this rank for crashed and kill it
    kept = _without(_without(args, "--name"), "--ckpt_path")
    command = shlex.join(["ddn", *kept, "--name", str(stop.run), "--ckpt_path", "last"])
    print(f"stopped by {stop.signal_name}, saved in {stop.checkpoint}; resume with\n{command}", file=sys.stderr)
    return int(stop.code or 0)


def _without(args: list[str], option: str) -> list[str]:
    """The arguments without an option and its value.

    >>> _without(["fit", "--name", "first", "--seed_everything=1"], "--name")
    ['fit', '--seed_everything=1']
    """
    pairs = zip([None, *args], args, strict=False)
    return [word for before, word in pairs if option not in (before, word) and not word.startswith(f"{option}=")]


def _user_error(error: BaseException | None) -> BaseException | None:
    """The user error that caused an error, if any; jsonargparse wraps the errors of constructors."""
    while error is not None and not isinstance(error, ConfigurationError | MisconfigurationException):
        error = error.__cause__
    return error
