"""The settings that all trials of one ``ddn tune`` share, and the runs of a trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.names import title_of
from ddn_lightning.reproduce.grid import NONE, Cell
from ddn_lightning.reproduce.plan import Options, Run, plan, short_name
from ddn_lightning.reproduce.presets import PresetRow, overrides_for
from ddn_lightning.tune.ranges import Range, Value, as_options

FIRST_SEED = 1000  # of trials: smaller seeds are kept for reporting
SEARCH_OPTIONS = (
    *("--seed_everything", "--name", "--data.closed_test", "--data.class_order_seed"),
    *("--data.validation_share", "--data.validation_per_class", "--data.validation_seed"),
)
STOP = "--trainer.callbacks+=ddn_lightning.callbacks.StopAtTask"


@dataclass(frozen=True)
class Arm:
    """A method with a plug-in, and the ranges to search."""

    cell: Cell
    ranges: tuple[Range, ...]

    @property
    def name(self) -> str:
        """Method and plug-in.

        >>> Arm(Cell("online", "cifar10", 200, "er", "ddn"), ()).name
        'er-ddn'
        """
        return "-".join(short_name(part) for part in (self.cell.method, self.cell.plugin) if part != NONE)

    @property
    def title(self) -> str:
        """Method and plug-in, for readers."""
        return title_of(short_name(self.cell.method), short_name(self.cell.plugin))


@dataclass(frozen=True)
class Search:
    """The settings of all studies.

    Args:
        folder: Where everything is written.
        command: The command, for the record.
        trials: Trials of each study.
        seeds: Seeds of each trial's runs.
        tasks: Number of tasks to learn, the first ones of another class order; ``None`` for the reported sequence.
        order_seed: Seed of the other class order.
        validation_share: Share of the training images that the trials are scored on.
        at_once: Trials of a study that are proposed together and may run in parallel.
        rows: The presets.
        options: Options of all runs; its preset gives the values that are not searched.
    """

    folder: Path
    command: str
    trials: int
    seeds: tuple[int, ...]
    tasks: int | None
    order_seed: int
    validation_share: float
    at_once: int
    rows: Sequence[PresetRow]
    options: Options

    @property
    def protocol(self) -> str:
        """Which tasks the trials learn, in words."""
        if self.tasks is None:
            return "whole sequence; peeks: the hyper-parameters have seen all tasks that are reported"
        return (
            f"first {self.tasks} tasks of another class order, that of class_order_seed {self.order_seed}; then fixed"
        )

    def overrides(self, cell: Cell) -> dict[str, str]:
        """The options of all trials of a cell, from the preset and the command."""
        return {**overrides_for(self.rows, self.options.preset, cell), **given_options(self.options.extra)}

    def runs(self, arm: Arm, number: int, values: Mapping[str, Value]) -> list[Run]:
        """The runs of a trial, one per seed.

        The name of a run folder ends in a fingerprint of all options and configuration files. A search with other
        settings therefore never finds the runs of this one.
        """
        options = replace(self.options, extra=[*self.options.extra, *self._protocol_options(), *as_options(values)])
        runs = plan([arm.cell], self.seeds, self.rows, options)
        folder = self.folder / arm.name
        return [replace(run, folder=folder / f"trial-{number:03}-seed{run.seed}-{_fingerprint(run)}") for run in runs]

    def _protocol_options(self) -> list[str]:
        """Options that hold out validation images, close the test images and stop after the last task to learn."""
        closed = ["--data.validation_share", str(self.validation_share), "--data.closed_test", "true"]
        if self.tasks is None:
            return closed
        order = ["--data.class_order_seed", str(self.order_seed)]
        return [*order, *closed, STOP, "--trainer.callbacks.tasks", str(self.tasks)]


def given_options(words: Sequence[str]) -> dict[str, str]:
    """Options of every run, as given after ``--``; refuses those that the search sets itself.

    >>> given_options(["--data.epochs_per_task", "1", "--model.lr=0.1"])
    {'--data.epochs_per_task': '1', '--model.lr': '0.1'}
    """
    options, rest = {}, iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            raise ConfigurationError(f"arguments after -- must be options such as --data.epochs_per_task 1, got {word}")
        if option in SEARCH_OPTIONS:
            raise ConfigurationError(f"{option} must be left out after --: the search sets it")
        options[option] = value if equals else next(rest, "")
    return options


def _fingerprint(run: Run) -> str:
    return run.folder.name.rpartition("-")[2]
