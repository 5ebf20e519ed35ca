"""The commands ``ddn fit``, ``validate`` and ``test``, which a Trainer executes, and the errors that only it raises."""

import shlex
import signal
import sys
from itertools import takewhile

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

import ddn_lightning.api  # noqa: F401  # options name its classes
from ddn_lightning.callbacks.stop_signals import Interrupted
from ddn_lightning.cli.commands import TRAINER_COMMANDS
from ddn_lightning.cli.evaluate_command import evaluate
from ddn_lightning.cli.fit_command import DDNCommand
from ddn_lightning.cli.grow import grown_arguments, is_growing
from ddn_lightning.cli.imports import check_class_paths, check_run_configs
from ddn_lightning.cli.trainer_parser import DDNParser
from ddn_lightning.cli.user_mistake import loss_of_a_process
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.deploy.load import find_checkpoint
from ddn_lightning.errors import ConfigurationError, DivergenceError, printable
from ddn_lightning.runs.recorded_run import CONFIG_FILE

SOME_FAILED, DIVERGED = 1, 3  # exit codes
NOT_OF_A_TEST = ("logger=false", "callbacks=null", "profiler=null", "plugins=null", "default_root_dir=null")


def train_or_evaluate(arguments: list[str], args: list[str] | None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: The command and its arguments.
        args: The same for Lightning, which warns unless it is ``None`` where they are those of the process.
    """
    try:
        return _run(arguments, args)
    except (ValueError, MisconfigurationException) as error:
        mistake = _user_error(error)
        if mistake is None:
            raise
        raise ConfigurationError(str(mistake)) from error
    except DivergenceError as error:
        lines = [str(error), *getattr(error, "__notes__", ())]
        return _fail("\n".join(lines), DIVERGED) if _is_first_rank() else 0  # see _print_resume_command
    except SIGTERMException:  # before the first batch
        return 128 + signal.SIGTERM
    except Interrupted as stop:
        return _print_resume_command(stop, arguments)
    except Exception as error:
        if (loss := loss_of_a_process(error)) is None:
            raise
        return _fail(loss, SOME_FAILED)


def _run(arguments: list[str], args: list[str] | None) -> int:
    name, *rest = arguments
    if name == "test" and (words := list(takewhile(lambda word: word[:1] != "-", rest))):
        if len(words) > 1:
            return evaluate(rest)
        arguments = ["test", *_options_of(words[0]), *rest[1:]]
    if name != "fit":
        check_run_configs(arguments)
        args = arguments
    elif is_growing(arguments):
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
        commands=[name] if name in TRAINER_COMMANDS else TRAINER_COMMANDS,
    )
    return 0


def _options_of(run: str) -> list[str]:
    """The options that evaluate a run on its own data, without what its configuration has a Trainer write."""
    checkpoint = find_checkpoint(run)
    config = checkpoint.parent.parent / CONFIG_FILE
    check_class_paths(config)
    return ["-c", str(config), "--ckpt_path", str(checkpoint), *(f"--trainer.{option}" for option in NOT_OF_A_TEST)]


def _print_resume_command(stop: Interrupted, args: list[str]) -> int:
    if not _is_first_rank():
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


def _is_first_rank() -> bool:
    return bool(rank_zero_only.rank == 0)  # type: ignore[attr-defined]


def _fail(message: str, code: int) -> int:
    print(f"error: {printable(message)}", file=sys.stderr)
    return code
