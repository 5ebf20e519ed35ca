"""Runs of one configuration with several seeds."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ddn_lightning import methods
from ddn_lightning.report.comparison import TITLES
from ddn_lightning.report.groups import DISPLAY_KEYS, IDENTITY_KEYS
from ddn_lightning.report.paper import METHODS, PLUGINS
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

Statistics = Literal["running", "calibrated"]
STATISTICS: tuple[Statistics, ...] = ("running", "calibrated")
MODEL = "model.init_args."
TEST_BED = ("data.", f"{MODEL}backbone", "trainer.", "forgetting.over", "forgetting.reference")
CONTROLS = {
    "old_memory_weight": 0,
    "replay_steps": 1,
    "replay_weight": 1,
    "running_statistics": "all",
}  # of a plain run


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Finished runs that differ in their seed only, one for each seed.

    Args:
        runs: The runs by seed.
    """

    runs: Mapping[int, RecordedRun]

    @property
    def first(self) -> RecordedRun:
        """Any of the runs, for what they have in common."""
        return next(iter(self.runs.values()))

    @property
    def results(self) -> Results:
        """Its results."""
        assert self.first.results is not None
        return self.first.results

    @cached_property
    def title(self) -> str:
        """Method and plug-in as the tables of the paper call them."""
        method = METHODS.get(self.results.method, self.results.method)
        plugin = PLUGINS.get(self.results.plugin, self.results.plugin)
        names = [method] if self.results.plugin is None else [method, str(plugin)]
        return " + ".join(TITLES.get(name, name) for name in names)

    @cached_property
    def test_bed(self) -> str:
        """What groups must have in common to be compared."""
        ignored = (*IDENTITY_KEYS, *DISPLAY_KEYS)
        settings = {k: v for k, v in self.first.config.items() if k.startswith(TEST_BED) and k not in ignored}
        known = {key: value for key, value in settings.items() if value is not None}
        sizes = [self.results.dataset, self.results.buffer_size, len(self.results.matrix)]
        return json.dumps([sizes, known], sort_keys=True, default=str)

    @property
    def is_plain(self) -> bool:
        """Whether it is a method alone: no plug-in, and none of the controls."""
        options = self.first.config
        is_control = any(options.get(MODEL + name, value) != value for name, value in CONTROLS.items())
        return self.results.plugin is None and not is_control

    @cached_property
    def unusual(self) -> int:
        """How many of the method's options are not its class's defaults."""
        defaults = _defaults(self.results.method)
        options = {key.removeprefix(MODEL): value for key, value in self.first.config.items() if key.startswith(MODEL)}
        return sum(name in defaults and _plain(value) != _plain(defaults[name]) for name, value in options.items())

    def values(self, name: Literal["acc", "fm"], statistics: Statistics) -> dict[int, float | None]:
        """A measure by seed, with these BatchNorm statistics."""
        return {seed: _measure(run.results, name, statistics) for seed, run in self.runs.items()}

    @property
    def cpu_minutes(self) -> dict[int, float | None]:
        """Processor time by seed."""
        return {seed: None if run.results is None else run.results.cpu_minutes for seed, run in self.runs.items()}


def _measure(results: Results | None, name: Literal["acc", "fm"], statistics: Statistics) -> float | None:
    if results is None:
        return None
    is_calibrated = results.statistics == "memory"  # and nothing else was evaluated
    if (statistics == "calibrated") == is_calibrated:
        return results.acc if name == "acc" else results.fm
    if is_calibrated:
        return None
    return results.calibrated_acc if name == "acc" else results.calibrated_fm


def _defaults(method: str) -> dict[str, Any]:
    """What a method's arguments are if nobody says otherwise; nothing is known of a user's own."""
    found = getattr(methods, method, None)
    if not isinstance(found, type):
        return {}
    constructors = [vars(one)["__init__"] for one in reversed(found.mro()) if "__init__" in vars(one)]
    arguments = [one for constructor in constructors for one in inspect.signature(constructor).parameters.values()]
    return {one.name: one.default for one in arguments if one.default is not inspect.Parameter.empty}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
