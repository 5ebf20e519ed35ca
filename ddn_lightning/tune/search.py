"""What all trials of one ``ddn tune`` have in common, and the runs of a trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.paper import Cell, Target
from ddn_lightning.report.tuning import arm_name
from ddn_lightning.reproduce.plan import Options, Run, plan
from ddn_lightning.reproduce.presets import PresetRow, overrides_for
from ddn_lightning.tune.ranges import Range, Value, as_options

FIRST_SEED = 1000  # of trials: smaller seeds are kept for reporting
SEARCH_SEED = 0
OF_THE_SEARCH = (
    *("--seed_everything", "--name", "--data.closed_test", "--data.class_order_seed"),
    *("--data.validation_share", "--data.validation_per_class", "--data.validation_seed"),
)
STOP = "--trainer.callbacks+=ddn_lightning.callbacks.StopAtTask"


@dataclass(frozen=True)
class Protocol:
    """Which tasks the trials learn.

    Args:
        tasks: The first tasks of another class order; ``None`` for the whole sequence, as it is reported.
        order_seed: Seed of that class order.
    """

    tasks: int | None = 3
    order_seed: int = FIRST_SEED

    @property
    def options(self) -> list[str]:
        """Arguments of ``ddn fit``, except the number of tasks."""
        return [] if self.tasks is None else ["--data.class_order_seed", str(self.order_seed)]

    @property
    def sentence(self) -> str:
        """The protocol in words."""
        if self.tasks is None:
            return "whole sequence; peeks: the hyper-parameters have seen all tasks that are reported"
        return (
            f"first {self.tasks} tasks of another class order, that of class_order_seed {self.order_seed}; then fixed"
        )


@dataclass(frozen=True)
class Arm:
    """One study: a method with a plug-in, and the ranges to search."""

    cell: Cell
    ranges: tuple[Range, ...]

    @property
    def name(self) -> str:
        """Method and plug-in."""
        return arm_name(self.cell)


@dataclass(frozen=True)
class Search:
    """The settings of all studies.

    Args:
        folder: Where everything is written.
        trials: Trials of each study.
        seeds: Seeds of each trial's runs.
        protocol: Which tasks the trials learn.
        validation_share: Share of the training images that the trials are scored on.
        prunes: Whether trials are stopped at a task's end where they are below the median.
        at_once: Trials of a study that are proposed together and may run in parallel.
        rows: The presets.
        options: Options of all runs; its preset gives the values that are not searched.
    """

    folder: Path
    trials: int
    seeds: tuple[int, ...]
    protocol: Protocol
    validation_share: float
    prunes: bool
    at_once: int
    rows: Sequence[PresetRow]
    options: Options

    def overrides(self, cell: Cell) -> dict[str, str]:
        """The options of all trials of a cell, from the preset and the command."""
        return {**overrides_for(self.rows, self.options.preset, cell), **given_options(self.options.extra)}

    def runs(
        self, arm: Arm, number: int, values: Mapping[str, Value], least: Sequence[Sequence[float | None]]
    ) -> list[Run]:
        """The runs of a trial, one per seed.

        Args:
            arm: The study.
            number: Number of the trial.
            values: The values to try.
            least: For each seed, ACC after each task below which its run is pruned.
        """
        extra = [*self.options.extra, *self._closed(), *as_options(values)]
        options = replace(self.options, extra=extra)
        runs = plan([Target(arm.cell)], self.seeds, self.rows, options)
        return [
            replace(
                run,
                arguments=(*run.arguments, *self._stops(limits)),
                folder=self.folder / arm.name / f"trial-{number:03}-seed{run.seed}",
            )
            for run, limits in zip(runs, least, strict=True)
        ]

    def described(self, arm: Arm) -> dict[str, object]:
        """What must not change between two starts of a study. More trials may be asked for."""
        options = replace(self.options, extra=[*self.options.extra, *self._closed()])
        runs = plan([Target(arm.cell)], self.seeds, self.rows, options)
        return {
            "seeds": list(self.seeds),
            "tasks": self.protocol.tasks,
            "settings": [run.folder.name for run in runs],  # they end in a fingerprint of all options and files
            "ranges": {one.option: one.as_plain() for one in arm.ranges},
            "prunes": self.prunes,
            "at_once": self.at_once,
        }

    def _closed(self) -> list[str]:
        """Options that hold out validation images, and close the test images."""
        share = ["--data.validation_share", str(self.validation_share), "--data.closed_test", "true"]
        return [*self.protocol.options, *share]

    def _stops(self, least: Sequence[float | None]) -> list[str]:
        """Options of the callback that ends a trial early."""
        given = {"tasks": self.protocol.tasks, "least": _as_list(least) if least else None}
        options = as_options({f"trainer.callbacks.{name}": value for name, value in given.items() if value is not None})
        return [STOP, *options] if options else []


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
        if option in OF_THE_SEARCH:
            raise ConfigurationError(f"{option} must be left out after --: the search sets it")
        options[option] = value if equals else next(rest, "")
    return options


def _as_list(numbers: Sequence[float | None]) -> str:
    return f"[{', '.join('null' if number is None else str(number) for number in numbers)}]"
