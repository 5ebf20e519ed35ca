"""LightningCLI for task sequences: run folders, results, resuming, and messages instead of tracebacks."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from ddn_lightning.callbacks.logged_curves import step_of
from ddn_lightning.callbacks.progress import TaskProgressBar
from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.callbacks.save_progress import SaveProgress
from ddn_lightning.cli_messages import readable
from ddn_lightning.curve_logger import CurveLogger
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.resume import CHECKPOINTS, last_checkpoint, read_checkpoint

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
    record: RunRecord | None = None
    resumed_folder: Path | None = None  # of the run to go on with
    checkpoint_step: int | None = None

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
        parser.add_argument(
            "--save_every_n_minutes",
            type=float,
            default=10.0,
            help="Minutes between two checkpoints within a task, besides those at task ends: "
            "<runs>/<name>/checkpoints/last.ckpt, from which --ckpt_path last goes on.",
        )
        parser.add_argument("--runs", type=str, default="runs", help="Folder for the folders of all runs.")
        parser.link_arguments("data.num_classes", "model.init_args.num_classes", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Check the checkpoint before anything is built. Unlike Lightning's, its values never replace given ones."""
        config = self.config[self.config.subcommand]
        path = config.get("ckpt_path")
        if path is None or path in ("best", "hpc"):
            return
        if path in ("last", "auto"):
            name = config.name or _default_name(config)
            found = last_checkpoint(Path(config.runs), name, is_default=config.name is None)
            if found is None and path == "last":
                raise ConfigurationError(
                    f"ckpt_path is last, but there is no checkpoint in {config.runs}/{name}/{CHECKPOINTS}: choose the "
                    "run by name, give a file, or let --ckpt_path auto start anew where nothing is to go on from"
                )
            if found is None:
                config.ckpt_path = None
                return
            config.ckpt_path = str(found)
            self.resumed_folder = found.parent.parent
        checkpoint = read_checkpoint(Path(config.ckpt_path), config.model.class_path.rpartition(".")[2])
        self.checkpoint_step = step_of(checkpoint)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run folder with its loggers and results, and the progress bar."""
        config = self.config_init[self.subcommand]
        callbacks: list[Callback] = []
        if config.trainer.enable_progress_bar is not False and not config.trainer.barebones:
            callbacks.append(TaskProgressBar())
        if self.subcommand == "fit" and not config.trainer.fast_dev_run:
            self.run_folder = self._claim_run_folder(config)
            self.record = RunRecord(self.run_folder, self._config_as_yaml())
            callbacks.append(self.record)
            if config.trainer.enable_checkpointing is not False and not config.trainer.barebones:
                callbacks.append(SaveProgress(self.run_folder / CHECKPOINTS, config.save_every_n_minutes))
            kwargs["default_root_dir"] = config.trainer.default_root_dir or str(self.run_folder)
        if config.trainer.logger in (None, True):
            is_logged = self.run_folder is not None and not config.trainer.barebones
            kwargs["logger"] = self._loggers() if is_logged else False
        self.trainer_defaults = {**self.trainer_defaults, "callbacks": callbacks}
        with self._no_folder_for_nothing():
            return super().instantiate_trainer(**kwargs)

    def fit(self, **kwargs: Any) -> None:
        """Train the whole sequence."""
        with self._no_folder_for_nothing():
            self.trainer.fit(**kwargs)

    @contextmanager
    def _no_folder_for_nothing(self) -> Iterator[None]:
        """Remove the new run folder again if training fails before it has begun, and say why if that was refused."""
        try:
            yield
        except BaseException as error:
            has_begun = self.record is not None and self.record.has_begun
            if self.is_new_folder and self.run_folder is not None and not has_begun:
                shutil.rmtree(self.run_folder)
            if isinstance(error, ValueError) and not has_begun and _modules_behind(error)[-1].startswith("lightning."):
                raise ConfigurationError(str(error)) from error
            if isinstance(error, RuntimeError | LookupError) and _was_raised_while_restoring(error):
                path = self.config[self.subcommand].ckpt_path
                reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
                raise ConfigurationError(f"{path} is not a checkpoint of this run: {reason}") from error
            raise

    def _config_as_yaml(self) -> str:
        """What repeats the run from its beginning, under another name."""
        parser = self._parser(self.subcommand)
        config = self.config[self.subcommand].clone()
        config.ckpt_path = None
        return str(parser.dump(config, skip_unset=False))

    def _loggers(self) -> list[Logger]:
        """CSV always, TensorBoard where it is installed, both writing straight into the run folder."""
        assert self.run_folder is not None
        parent, name = self.run_folder.parent, self.run_folder.name
        loggers: list[Logger] = [CurveLogger(parent, name, version="")]
        if find_spec("tensorboard"):  # purge_step hides what an earlier start has logged after its checkpoint
            purge_step = None if self.is_new_folder else self.checkpoint_step
            loggers.append(TensorBoardLogger(parent, name, version="", purge_step=purge_step))
        return loggers

    def _claim_run_folder(self, config: Any) -> Path:
        """Make the folder now, so that two runs that start together cannot take the same one."""
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return Path(os.environ.get(RUN_FOLDER_VARIABLE, config.runs))
        if self.resumed_folder is not None:
            return self.resumed_folder
        try:
            Path(config.runs).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"runs must be a folder that can be made, got {config.runs}: {error}") from error
        default = _name_of(type(self.model).__name__, self.datamodule.name, torch.initial_seed())
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


def _modules_behind(error: BaseException) -> list[str]:
    """The modules that an error has come through, the one that raised it last."""
    return [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]


def _was_raised_while_restoring(error: BaseException) -> bool:
    return any(module.endswith(".checkpoint_connector") for module in _modules_behind(error))


def _default_name(config: Any) -> str:
    """The default name of a run before anything of it is built; a seed that is not fixed is left open."""
    module, _, data = config.data.class_path.rpartition(".")
    seed = config.seed_everything
    is_fixed = isinstance(seed, int) and not isinstance(seed, bool)
    method = config.model.class_path.rpartition(".")[2]
    return _name_of(method, getattr(import_module(module), data).name, seed if is_fixed else "*")


def _name_of(method: str, data: str, seed: int | str) -> str:
    return f"{method}-{data}-seed{seed}".lower()


def _make_folder(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True
