"""LightningCLI for task sequences: run folders, results, resuming, and one-line errors."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt
from lightning.fabric.utilities.seed import max_seed_value
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from torch.multiprocessing.spawn import ProcessRaisedException

from ddn_lightning.callbacks.continual_evaluation import ContinualEvaluation
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.last_checkpoint import LastCheckpoint
from ddn_lightning.callbacks.logged_curves import saved_curves
from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.callbacks.run_record import RunRecord
from ddn_lightning.callbacks.stop_signals import Interrupted, passing_on
from ddn_lightning.callbacks.task_progress_bar import TaskProgressBar
from ddn_lightning.cli.grow import copy_curves
from ddn_lightning.cli.resume import checkpoint_of, default_name, last_checkpoint, run_name
from ddn_lightning.cli.run_figures import RunFigures
from ddn_lightning.cli.user_mistake import user_mistake
from ddn_lightning.deploy.load import find_checkpoint
from ddn_lightning.errors import ConfigurationError, DivergenceError, check_not_negative, note
from ddn_lightning.lightning_internals import kill_processes_of
from ddn_lightning.report.names import plugin_key
from ddn_lightning.runs.curve_logger import run_loggers
from ddn_lightning.runs.files import is_pipe
from ddn_lightning.runs.run_folder import CHECKPOINTS, LAST, RunFolder, is_finished

ALL_DEVICES = -1
CHOSEN_ON_SEEDS = "Seeds by which these settings were chosen: 'ddn compare' warns where they are reported."
RUN_FOLDER_VARIABLE = "DDN_RUN_FOLDER"  # passes the run folder to the processes of other devices


class DDNCommand(LightningCLI):
    """``ddn fit``, ``validate`` and ``test``.

    Args:
        *args: Arguments of Lightning's class.
        commands: The subcommands to build parsers for. All three take 0.06 s longer than one.
        **kwargs: Arguments of Lightning's class.
    """

    folder: RunFolder | None = None
    record: RunRecord | None = None
    resumed_folder: Path | None = None  # the run folder to resume in
    purge_step: int | None = None  # the step from which TensorBoard's curves are replaced
    is_growing = False  # whether to go on from the checkpoint of the run to grow
    is_auto = False  # whether to start a new run if there is no checkpoint
    is_finished = False  # whether nothing is left to train

    def __init__(self, *args: Any, commands: Iterable[str], **kwargs: Any) -> None:
        self.commands = commands
        super().__init__(*args, **kwargs)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's is static
        """The subcommands, each with the arguments of the Trainer's method that are not options."""
        arguments = LightningCLI.subcommands()
        return {name: arguments[name] for name in self.commands}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options that are not of the method, the data or the Trainer."""
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="Name of the run. All its files go to <runs>/<name>, which must be new unless --ckpt_path last or "
            "auto resumes it. Default: <method>-<plug-in>-<data>-seed<seed>, with a number if that is taken.",
        )
        parser.add_argument(
            "--save_every_n_minutes",
            type=NonNegativeFloat,
            default=10.0,
            help="Minutes between two checkpoints within a task, besides those at task ends: "
            "<runs>/<name>/checkpoints/last.ckpt, from which --ckpt_path last resumes.",
        )
        parser.add_argument("--runs", type=str, default="runs", help="Parent folder of all run folders.")
        parser.add_argument(
            "--grow",
            type=str | None,
            default=None,
            help="Folder of a finished run, which goes on with further tasks in a folder of its own, by default "
            "<run>-grown. All options are those of the run, unless given; --data options are those of the new tasks.",
        )
        parser.add_argument("--chosen_on_seeds", type=list[NonNegativeInt], default=[], help=CHOSEN_ON_SEEDS)
        # not in trainer.callbacks: the list of a later file replaces that of an earlier one
        parser.add_class_arguments(Forgetting, "forgetting")
        parser.add_class_arguments(ContinualEvaluation, "anytime")
        num_classes = "data.num_classes", "model.init_args.num_classes"
        parser.link_arguments(*num_classes, self._number_of_outputs, apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and refuse values that Lightning refuses with a traceback."""
        for word in sys.argv[1:] if args is None else args:
            if is_pipe(word.rpartition("=")[2]):  # jsonargparse would block on it
                raise ConfigurationError(f"expected a file, got the pipe {word}")
        try:
            super().parse_arguments(parser, args)
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"configuration files must be in UTF-8: {error}") from error
        config = self.config[self.config.subcommand]
        seed = config.seed_everything
        if not isinstance(seed, bool) and not 0 <= seed <= max_seed_value:
            raise ConfigurationError(f"seed_everything must be between 0 and {max_seed_value}, got {seed}")
        devices = str(config.trainer.devices)
        if re.fullmatch("-?[0-9]+", devices) and int(devices) < 1 and int(devices) != ALL_DEVICES:
            raise ConfigurationError(f"trainer.devices must be a positive number, or -1 for all, got {devices}")

    def _parse_ckpt_path(self) -> None:
        """Check the checkpoint before anything is built. Lightning's version also overrides options with its values."""
        config = self.config[self.config.subcommand]
        config.name = config.name or None
        if config.get("ckpt_path") in ("last", "auto"):
            config.ckpt_path = self._last_checkpoint(config)
        if self.config.subcommand == "fit" and config.grow is not None and config.ckpt_path is None:
            config.ckpt_path, self.is_growing = str(find_checkpoint(config.grow)), True
        if config.get("ckpt_path") is not None:
            checkpoint = checkpoint_of(Path(config.ckpt_path), config.model.class_path.rpartition(".")[2])
            if (curves := saved_curves(checkpoint)) is not None:
                self.purge_step = curves.step

    def _last_checkpoint(self, config: Any) -> str | None:
        self.is_auto = config.ckpt_path == "auto" and self.config.subcommand == "fit"
        if config.name is None and (self.is_auto or isinstance(config.seed_everything, bool)):
            raise ConfigurationError(f"ckpt_path {config.ckpt_path} needs --name, to know which run to resume")
        name = config.name or default_name(config)
        found = last_checkpoint(Path(config.runs), name, is_default=config.name is None)
        has_origin = config.grow is not None and Path(os.path.expanduser(config.grow)).exists()
        if found is not None and has_origin and found.samefile(find_checkpoint(config.grow)):
            raise ConfigurationError(f"name must be another one than that of the run to grow, got {name}")
        if found is not None:
            self.resumed_folder = found.parent.parent
            self.is_finished = self.config.subcommand == "fit" and is_finished(self.resumed_folder)
            return str(found)
        if not self.is_auto:
            raise ConfigurationError(
                f"ckpt_path is {config.ckpt_path}, but there is no checkpoint in {config.runs}/{name}/{CHECKPOINTS}: "
                "choose the run by name, or give a file"
            )
        return None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run folder, the loggers and the callbacks."""
        with self._released_on_failure(), self._as_configuration_error():
            return super().instantiate_trainer(**kwargs, **self._run_arguments())

    def _run_arguments(self) -> dict[str, Any]:
        """Claim the run folder, and choose the callbacks; the arguments of the Trainer that follow from it."""
        kwargs: dict[str, Any] = {}
        config = self.config_init[self.subcommand]
        self._check_num_classes()
        check_not_negative(save_every_n_minutes=config.get("save_every_n_minutes", 0.0))
        callbacks = self._forgetting(config) + self._anytime(config)
        if self.subcommand == "fit" and not config.trainer.fast_dev_run and not self.is_finished:
            self.folder = self._claim_folder(config)
            if self.is_growing and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
                copy_curves(config.grow, self.folder.path)
            self.record = RunRecord(self.folder, self._config_as_yaml())
            callbacks += [self.record, Observations(), RunFigures(self.folder.path)]
            if config.trainer.enable_checkpointing is not False and not config.trainer.barebones:
                callbacks.append(LastCheckpoint(self.folder.path / CHECKPOINTS, config.save_every_n_minutes))
            kwargs["default_root_dir"] = config.trainer.default_root_dir or str(self.folder.path)
        if config.trainer.enable_progress_bar is not False and not config.trainer.barebones:
            # first, so that the bar is gone before the results are printed
            callbacks.insert(0, TaskProgressBar(folder=None if self.folder is None else self.folder.path))
        if config.trainer.logger in (None, True):
            folder = None if config.trainer.barebones else self.folder
            kwargs["logger"] = False if folder is None else run_loggers(folder, self.purge_step)
        self.trainer_defaults = {**self.trainer_defaults, "callbacks": callbacks}
        return kwargs

    def _forgetting(self, config: Any) -> list[Callback]:
        """The configured :class:`Forgetting`, unless ``trainer.callbacks`` has one."""
        given = config.trainer.callbacks or []
        if not any(isinstance(c, Forgetting) for c in (given if isinstance(given, list) else [given])):
            return [config.forgetting]
        if self.config[self.subcommand].forgetting != self._parser(self.subcommand).get_defaults().forgetting:
            raise ConfigurationError("forgetting must be left out where trainer.callbacks has a Forgetting of its own")
        return []

    def _anytime(self, config: Any) -> list[Callback]:
        """The configured :class:`ContinualEvaluation`, if it is to measure within tasks."""
        if config.anytime.every_n_steps:
            return [config.anytime]
        defaults = self._parser(self.subcommand).get_defaults().anytime
        given = self.config[self.subcommand].anytime.items()
        if self.subcommand == "fit" and (useless := [f"{name} {one}" for name, one in given if one != defaults[name]]):
            raise ConfigurationError(
                f"anytime needs every_n_steps to measure within tasks, got {', '.join(useless)} alone"
            )
        return []

    def fit(self, **kwargs: Any) -> None:
        """Train the whole sequence."""
        if self.is_finished:
            note(f"this run was finished already, nothing was left to train: its results are in {self.resumed_folder}/")
            return
        kill = kill_processes_of(self.trainer)
        path = Path() if self.folder is None else self.folder.path
        signals = nullcontext() if kill is None else passing_on(kill, path / CHECKPOINTS / LAST)
        try:
            with self._released_on_failure(), self._as_configuration_error(), signals:
                self.trainer.fit(**kwargs)
        except Interrupted as stop:
            stop.run = os.path.relpath(path, self.config[self.subcommand].runs)
            raise
        except (DivergenceError, ProcessRaisedException) as error:
            diverged = error if isinstance(error, DivergenceError) else DivergenceError.from_traceback(str(error))
            if diverged is None:
                raise
            if (path / CHECKPOINTS / LAST).is_file():
                name = shlex.quote(os.path.relpath(path, self.config[self.subcommand].runs))
                diverged.add_note(f"to resume from the last good checkpoint add --name {name} --ckpt_path last")
            raise diverged from None
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # Lightning's exit code would be 1
                raise KeyboardInterrupt from error
            raise
        if self.folder is not None:
            self.folder.release()

    def validate(self, **kwargs: Any) -> None:
        """Evaluate on the tasks seen."""
        with self._as_configuration_error():
            self.trainer.validate(**kwargs)

    def test(self, **kwargs: Any) -> None:
        """Evaluate on all tasks."""
        with self._as_configuration_error():
            self.trainer.test(**kwargs)

    @property
    def _given_num_classes(self) -> Any:
        return self.config[self.config.subcommand].model.init_args.get("num_classes")

    def _number_of_outputs(self, num_classes: int) -> int:
        """The number of classes of the data, or a larger one that is given."""
        return max(num_classes, int(self._given_num_classes or 0))

    def _check_num_classes(self) -> None:
        """Refuse a given ``num_classes`` below the data's; that of a run to grow was of fewer classes."""
        given, found = self._given_num_classes, self.datamodule.num_classes
        if given is not None and given < found and self.config[self.subcommand].grow is None:
            data = type(self.datamodule).__name__
            raise ConfigurationError(f"model.num_classes must be left out, or at least {data}'s {found}, got {given}")

    @contextmanager
    def _released_on_failure(self) -> Iterator[None]:
        """Release the run folder; if the run fails before training begins, it is left as it was."""
        try:
            yield
        except BaseException:
            if self.folder is not None:
                self.folder.release()
            raise

    @contextmanager
    def _as_configuration_error(self) -> Iterator[None]:
        """Raise a :class:`ConfigurationError` for errors that the user can correct."""
        try:
            yield
        except DivergenceError:
            raise
        except Exception as error:
            folder = None if self.folder is None else self.folder.path
            has_begun = self.record is not None and self.record.has_begun
            checkpoint = self.config[self.subcommand].ckpt_path
            mistake = user_mistake(error, folder, has_begun, self.datamodule.batch_size, checkpoint)
            if mistake is None:
                raise
            raise ConfigurationError(mistake) from error

    def _config_as_yaml(self) -> str:
        """The configuration that repeats the run from its start."""
        config = self.config[self.subcommand].clone()
        config.ckpt_path = None
        is_of_data = (self._given_num_classes or 0) <= self.datamodule.num_classes
        return str(self._parser(self.subcommand).dump(config, skip_unset=False, skip_link_targets=is_of_data))

    def _claim_folder(self, config: Any) -> RunFolder:
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return RunFolder(Path(os.environ.get(RUN_FOLDER_VARIABLE, config.runs)))
        if self.resumed_folder is not None:
            folder = RunFolder(self.resumed_folder).claim()
        else:
            distiller = getattr(self.model, "distiller", None)
            plugin = plugin_key(None if distiller is None else type(distiller).__name__)
            method, data = type(self.model).__name__, self.datamodule.name
            name = run_name(method, plugin, data, torch.initial_seed(), config.grow)
            checkpoint = None if config.ckpt_path is None or self.is_growing else Path(config.ckpt_path)
            folder = RunFolder.make(Path(config.runs), config.name, name, checkpoint, self.is_auto)
        os.environ[RUN_FOLDER_VARIABLE] = str(folder.path)
        return folder
