"""LightningCLI for task sequences: run folders, results, resuming, and messages instead of tracebacks."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

import torch
from jsonargparse.typing import NonNegativeFloat
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_only

from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.callbacks.progress import TaskProgressBar
from ddn_lightning.callbacks.run_figures import RunFigures
from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.callbacks.save_progress import LAST, SaveProgress
from ddn_lightning.cli_messages import readable
from ddn_lightning.curve_logger import CurveLogger
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.resume import last_checkpoint, logged_until, read_checkpoint
from ddn_lightning.run_folder import CHECKPOINTS, RunFolder
from ddn_lightning.stop_signals import Interrupted, passing_on

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
    """What ``ddn fit``, ``validate`` and ``test`` do beyond LightningCLI."""

    folder: RunFolder | None = None
    record: RunRecord | None = None
    resumed_folder: Path | None = None  # of the run to go on with
    logged_until: int | None = None  # the step from which on its curves are logged anew
    is_auto = False  # whether to start where there is nothing to go on from

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
            help="Name of the run. Everything it leaves goes to the folder <runs>/<name>, which must be new unless "
            "--ckpt_path last or auto goes on with it. Default: <method>-<data>-seed<seed>, with a number if that is "
            "taken.",
        )
        parser.add_argument(
            "--save_every_n_minutes",
            type=NonNegativeFloat,
            default=10.0,
            help="Minutes between two checkpoints within a task, besides those at task ends: "
            "<runs>/<name>/checkpoints/last.ckpt, from which --ckpt_path last goes on.",
        )
        parser.add_argument("--runs", type=str, default="runs", help="Folder for the folders of all runs.")
        # not left to trainer.callbacks, of which a later file's list replaces that of an earlier one
        parser.add_class_arguments(Forgetting, "forgetting")
        parser.link_arguments("data.num_classes", "model.init_args.num_classes", apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Check the checkpoint before anything is built. Unlike Lightning's, its values never replace given ones."""
        config = self.config[self.config.subcommand]
        config.name = config.name or None
        if config.get("ckpt_path") in ("last", "auto"):
            config.ckpt_path = self._last_checkpoint(config)
        if config.get("ckpt_path") is not None:
            checkpoint = read_checkpoint(Path(config.ckpt_path), config.model.class_path.rpartition(".")[2])
            self.logged_until = logged_until(checkpoint)

    def _last_checkpoint(self, config: Any) -> str | None:
        self.is_auto = config.ckpt_path == "auto" and self.config.subcommand == "fit"
        if config.name is None and (self.is_auto or isinstance(config.seed_everything, bool)):
            raise ConfigurationError(f"ckpt_path {config.ckpt_path} needs --name, to know which run to go on with")
        name = config.name or _default_name(config)
        found = last_checkpoint(Path(config.runs), name, is_default=config.name is None)
        if found is not None:
            self.resumed_folder = found.parent.parent
            return str(found)
        if not self.is_auto:
            raise ConfigurationError(
                f"ckpt_path is {config.ckpt_path}, but there is no checkpoint in {config.runs}/{name}/{CHECKPOINTS}: "
                "choose the run by name, or give a file"
            )
        return None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run folder with its loggers and results, and the progress bar."""
        config = self.config_init[self.subcommand]
        callbacks: list[Callback] = self._measuring(config)
        if config.trainer.enable_progress_bar is not False and not config.trainer.barebones:
            callbacks.append(TaskProgressBar())
        if self.subcommand == "fit" and not config.trainer.fast_dev_run:
            self.folder = self._claim_folder(config)
            self.record = RunRecord(self.folder.path, self._config_as_yaml())
            callbacks += [self.record, Observations(), RunFigures(self.folder.path)]
            if config.trainer.enable_checkpointing is not False and not config.trainer.barebones:
                callbacks.append(SaveProgress(self.folder.path / CHECKPOINTS, config.save_every_n_minutes))
            kwargs["default_root_dir"] = config.trainer.default_root_dir or str(self.folder.path)
        if config.trainer.logger in (None, True):
            is_logged = self.folder is not None and not config.trainer.barebones
            kwargs["logger"] = self._loggers(self.folder) if self.folder and is_logged else False
        self.trainer_defaults = {**self.trainer_defaults, "callbacks": callbacks}
        with self._no_folder_for_nothing(), self._refusals_named():
            return super().instantiate_trainer(**kwargs)

    def _measuring(self, config: Any) -> list[Callback]:
        """The callback that measures, unless ``trainer.callbacks`` has one already."""
        given = config.trainer.callbacks or []
        if not any(isinstance(c, Forgetting) for c in (given if isinstance(given, list) else [given])):
            return [config.forgetting]
        asked_for = self.config[self.subcommand].forgetting
        if asked_for != self._parser(self.subcommand).get_defaults().forgetting:
            raise ConfigurationError("forgetting must be left out where trainer.callbacks has a Forgetting of its own")
        return []

    def fit(self, **kwargs: Any) -> None:
        """Train the whole sequence."""
        launcher = self.trainer.strategy.launcher
        path = Path() if self.folder is None else self.folder.path
        is_parent = isinstance(launcher, _MultiProcessingLauncher)
        signals = passing_on(launcher.kill, path / CHECKPOINTS / LAST) if launcher and is_parent else nullcontext()
        try:
            with self._no_folder_for_nothing(), self._refusals_named(), signals:
                self.trainer.fit(**kwargs)
        except Interrupted as stop:
            stop.run = os.path.relpath(path, self.config[self.subcommand].runs)
            raise
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # for which Lightning exits with 1
                raise KeyboardInterrupt from error
            raise
        if self.folder is not None:
            self.folder.unlock()

    def validate(self, **kwargs: Any) -> None:
        """Measure on the tasks seen."""
        with self._refusals_named():
            self.trainer.validate(**kwargs)

    def test(self, **kwargs: Any) -> None:
        """Measure on all tasks."""
        with self._refusals_named():
            self.trainer.test(**kwargs)

    @contextmanager
    def _no_folder_for_nothing(self) -> Iterator[None]:
        """Remove the new run folder again if training fails before it has begun."""
        try:
            yield
        except BaseException:
            if self.folder is not None:
                self.folder.unlock()
                self.folder.remove_if_unused()
            raise

    @contextmanager
    def _refusals_named(self) -> Iterator[None]:
        """Tell what Lightning refuses, and a checkpoint that does not fit, from mistakes of ours."""
        try:
            yield
        except ConfigurationError:
            raise
        except Exception as error:
            modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
            if any(module.endswith(".checkpoint_connector") for module in modules):
                reason = " ".join(line.strip() for line in str(error).splitlines()[:2])[:300]
                path = self.config[self.subcommand].ckpt_path
                raise ConfigurationError(
                    f"{path} does not fit: another network or distiller, or damaged ({type(error).__name__}: {reason})"
                ) from error
            has_begun = self.record is not None and self.record.has_begun
            if isinstance(error, ValueError) and not has_begun and modules[-1].startswith("lightning."):
                raise ConfigurationError(str(error)) from error
            raise

    def _config_as_yaml(self) -> str:
        """What repeats the run from its beginning, under another name."""
        parser = self._parser(self.subcommand)
        config = self.config[self.subcommand].clone()
        config.ckpt_path = None
        return str(parser.dump(config, skip_unset=False))

    def _loggers(self, folder: RunFolder) -> list[Logger]:
        """CSV always, TensorBoard where it is installed, both writing straight into the run folder."""
        parent, name = folder.path.parent, folder.path.name
        loggers: list[Logger] = [CurveLogger(parent, name, version="")]
        if find_spec("tensorboard"):  # purge_step hides what an earlier start has logged after its checkpoint
            purge_step = None if folder.is_new else self.logged_until
            loggers.append(TensorBoardLogger(parent, name, version="", purge_step=purge_step))
        return loggers

    def _claim_folder(self, config: Any) -> RunFolder:
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return RunFolder(Path(os.environ.get(RUN_FOLDER_VARIABLE, config.runs)))
        if self.resumed_folder is not None:
            folder = RunFolder(self.resumed_folder).locked()
        else:
            default_name = _name_of(type(self.model).__name__, self.datamodule.name, torch.initial_seed())
            checkpoint = None if config.ckpt_path is None else Path(config.ckpt_path)
            folder = RunFolder.make(Path(config.runs), config.name, default_name, checkpoint, self.is_auto)
        os.environ[RUN_FOLDER_VARIABLE] = str(folder.path)
        return folder


def _default_name(config: Any) -> str:
    """The default name of a run before anything of it is built."""
    module, _, data = config.data.class_path.rpartition(".")
    method = config.model.class_path.rpartition(".")[2]
    return _name_of(method, getattr(import_module(module), data).name, config.seed_everything)


def _name_of(method: str, data: str, seed: int) -> str:
    return f"{method}-{data}-seed{seed}".lower()
