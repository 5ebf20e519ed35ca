"""The ``ddn`` command: fit, validate and test from YAML files and single options."""

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from ddn_lightning.callbacks.progress import TaskProgressBar
from ddn_lightning.callbacks.run_record import CONFIG_FILE, RunRecord
from ddn_lightning.cli_messages import readable
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.methods.base import ReplayMethod
from ddn_lightning.methods.task_learner import CHECKPOINT_KEY

EXPECTED_WARNINGS = (
    ".*isinstance.treespec, LeafSpec",  # Lightning 2.6.6 on torch 2.15
    "`torch.jit.script` is deprecated",  # torch 2.15's own forward-mode derivatives
    "LightningCLI's args parameter is intended to run from within Python",  # as the tests and notebooks do
    "The dirpath has changed",  # a run may be resumed or evaluated under another name
    "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",  # evaluating needs no RunRecord
)
RUN_FOLDER_VARIABLE = "DDN_RUN_FOLDER"  # tells processes started for further devices which folder the first one took


class DDNParser(LightningArgumentParser):
    """Lightning's parser with shorter messages, which list the choices where a class name is not one of them."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        print(f"error: {readable(message)}", file=sys.stderr)
        print("tip: 'ddn fit --help' lists all options, 'ddn fit --model.help ER' those of a method", file=sys.stderr)
        raise SystemExit(2)


class DDNCommand(LightningCLI):
    """LightningCLI for task sequences: run folders, results, the progress bar, and messages instead of tracebacks."""

    run_folder: Path | None = None
    is_new_folder = False

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """What ``ddn`` can do, each with the arguments of the Trainer's method that are not options."""
        commands = LightningCLI.subcommands()
        return {name: commands[name] for name in ("fit", "validate", "test")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Options besides those of the method, the data and the Trainer."""
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="Name of the run. Everything it leaves goes to the folder <runs>/<name>, which must be new. "
            "Default: <method>-<data>-seed<seed>, with a number if that is taken.",
        )
        parser.add_argument("--runs", type=str, default="runs", help="Folder for the folders of all runs.")
        parser.link_arguments("data.num_classes", "model.init_args.num_classes", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Check the checkpoint before anything is built. Unlike Lightning's, its values never replace given ones."""
        config = self.config[self.config.subcommand]
        path = config.get("ckpt_path")
        if path is None or path in ("best", "last", "hpc"):
            return
        if not Path(path).is_file():
            raise ConfigurationError(f"ckpt_path must be an existing file, got {path}")
        try:
            record = torch.load(path, map_location="cpu", weights_only=True, mmap=True).get(CHECKPOINT_KEY)
        except Exception as error:
            raise ConfigurationError(f"{path} cannot be read as a checkpoint: {error}") from error
        method = config.model.class_path.rpartition(".")[2]
        if record is None or record["method"] != method:
            found = "no checkpoint of ddn_lightning" if record is None else f"a checkpoint of {record['method']}"
            raise ConfigurationError(f"ckpt_path must be a checkpoint of {method}, but {path} is {found}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run folder with its loggers and results, and the progress bar."""
        config = self.config_init[self.subcommand]
        callbacks: list[Callback] = []
        if config.trainer.enable_progress_bar is not False and not config.trainer.barebones:
            callbacks.append(TaskProgressBar())
        if self.subcommand == "fit" and not config.trainer.fast_dev_run:
            self.run_folder = self._claim_run_folder(config)
            callbacks.append(RunRecord(self.run_folder, self._config_as_yaml()))
            kwargs["default_root_dir"] = config.trainer.default_root_dir or str(self.run_folder)
        if config.trainer.logger in (None, True):
            kwargs["logger"] = _loggers(self.run_folder) if self.run_folder and not config.trainer.barebones else False
        self.trainer_defaults = {**self.trainer_defaults, "callbacks": callbacks}
        with self._no_folder_for_nothing():
            return super().instantiate_trainer(**kwargs)

    def fit(self, **kwargs: Any) -> None:
        """Train the whole sequence."""
        with self._no_folder_for_nothing():
            self.trainer.fit(**kwargs)

    @contextmanager
    def _no_folder_for_nothing(self) -> Iterator[None]:
        """Remove the new run folder again if training fails before it has begun, and say so if Lightning refused."""
        try:
            yield
        except BaseException as error:
            has_begun = self.run_folder is not None and (self.run_folder / CONFIG_FILE).exists()
            if self.is_new_folder and self.run_folder is not None and not has_begun:
                shutil.rmtree(self.run_folder)
            if isinstance(error, ValueError) and not has_begun and _was_raised_by_lightning(error):
                raise ConfigurationError(str(error)) from error
            raise

    def _config_as_yaml(self) -> str:
        parser = self._parser(self.subcommand)
        return str(parser.dump(self.config[self.subcommand], skip_unset=False))

    def _claim_run_folder(self, config: Any) -> Path:
        """Make the folder now, so that two runs that start together cannot take the same one."""
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return Path(os.environ.get(RUN_FOLDER_VARIABLE, config.runs))
        try:
            Path(config.runs).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"runs must be a folder that can be made, got {config.runs}: {error}") from error
        default = f"{type(self.model).__name__}-{self.datamodule.name}-seed{torch.initial_seed()}".lower()
        folder = Path(config.runs) / (config.name or default)
        number = 1
        while not (is_new := _make_folder(folder)):
            if config.name is None:
                number += 1
                folder = Path(config.runs) / f"{default}-{number}"
            elif config.ckpt_path is not None and folder.resolve() in Path(config.ckpt_path).resolve().parents:
                break  # goes on with the run that is there
            else:
                raise ConfigurationError(
                    f"name must be new, but {folder} exists already: choose another one, delete the folder, or go on "
                    "from one of its own checkpoints by ckpt_path"
                )
        self.is_new_folder = is_new
        os.environ[RUN_FOLDER_VARIABLE] = str(folder)
        return folder


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for a mistake in what was asked for."""
    for chatty in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for expected in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=expected)
    try:
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
            args=args,
        )
    except (ValueError, MisconfigurationException) as error:
        mistake = _mistake_behind(error)
        if mistake is None:
            raise
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    return 0


def _mistake_behind(error: BaseException | None) -> BaseException | None:
    """The user's mistake that led to an error; jsonargparse wraps what a constructor raises."""
    while error is not None and not isinstance(error, ConfigurationError | MisconfigurationException):
        error = error.__cause__
    return error


def _was_raised_by_lightning(error: BaseException) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("lightning.")


def _make_folder(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _loggers(folder: Path) -> list[Logger]:
    """CSV always, TensorBoard where it is installed, both writing straight into the run folder."""
    loggers: list[Logger] = [CSVLogger(folder.parent, folder.name, version="")]
    if find_spec("tensorboard"):
        loggers.append(TensorBoardLogger(folder.parent, folder.name, version=""))
    return loggers
