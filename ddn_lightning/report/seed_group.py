"""Runs of one configuration with several seeds, what each is compared with, and how to call it."""

import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ddn_lightning import methods
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.names import method_key, plugin_key, title_of
from ddn_lightning.report.groups import (
    COLUMN_KEYS,
    COMPARED_PREFIXES,
    DISPLAY_KEYS,
    IDENTITY_KEYS,
    Difference,
    differences,
)
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
        return title_of(method_key(self.results.method), plugin_key(self.results.plugin))

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


Baselines = Mapping[SeedGroup, SeedGroup | None]


def baselines_of(groups: Sequence[SeedGroup], wanted: str | None = None) -> Baselines:
    """What each group is compared with, on the same test bed; a baseline is its own.

    Args:
        groups: The groups.
        wanted: Name of the baseline: as :func:`names_of` calls it, of its method, or of one of its runs. By
            default each method is compared with its plain form: alone, with its default options as far as possible.

    Raises:
        ConfigurationError: If no group has that name.
    """
    if wanted is None:
        candidates = [group for group in groups if group.is_plain]
    else:
        labels = names_of(groups)
        candidates = [group for group in groups if labels[group].casefold() == wanted.casefold()]
        candidates = candidates or [group for group in groups if _is_called(group, wanted)]
        if not candidates and groups:
            known = "; ".join(labels.values())
            raise ConfigurationError(f"baseline must be the name of a run, or one of: {known}; got {wanted}")
    found: dict[tuple[str, str], SeedGroup] = {}
    for group in sorted(candidates, key=_rank):
        found.setdefault(_key(group, wanted), group)
    return {group: found.get(_key(group, wanted)) for group in groups}


def _rank(group: SeedGroup) -> tuple[bool, bool, int, int]:
    """The plainest first; what was evaluated with calibrated statistics alone is no reference for the others."""
    return not group.is_plain, group.results.statistics == "memory", group.unusual, -len(group.runs)


def _key(group: SeedGroup, wanted: str | None) -> tuple[str, str]:
    return group.test_bed, group.results.method if wanted is None else ""


def _is_called(group: SeedGroup, wanted: str) -> bool:
    results = group.results
    names = [group.title, results.title, *(run.name for run in group.runs.values())]
    if results.plugin is None:
        names.append(method_key(results.method))
    return wanted.casefold() in (name.casefold() for name in names)


def names_of(groups: Sequence[SeedGroup]) -> dict[SeedGroup, str]:
    """A name for each group: the method, and the settings that are not those of its plain form."""
    baselines = baselines_of(groups)
    settings = [
        {
            key: value
            for key, value in group.first.config.items()
            if key.startswith(COMPARED_PREFIXES) and key not in COLUMN_KEYS
        }
        for group in groups
    ]
    varied = [one for one in differences(settings) if len({value for value in one.values if value}) > 1]
    sizes = {(group.results.dataset, group.results.buffer_size) for group in groups}
    places = {group: number for number, group in enumerate(groups)}
    names = {}
    for group, number in places.items():
        baseline = baselines[group]
        told = _told(varied, number, None if baseline is None else places[baseline])
        where = f"{group.results.dataset}, memory {group.results.buffer_size}: " if len(sizes) > 1 else ""
        names[group] = where + ", ".join([group.title, *told])
    counts = Counter(names.values())
    return {group: f"{name} ({group.first.name})" if counts[name] > 1 else name for group, name in names.items()}


def _told(varied: Sequence[Difference], number: int, baseline: int | None) -> list[str]:
    """The settings to name a group by: those of its test bed, and those in which it is not plain."""
    chosen = [
        one
        for one in varied
        if one.values[number]
        and (baseline is None or one.key.startswith(TEST_BED) or one.values[number] != one.values[baseline])
    ]
    return [f"{one.key.rpartition('.')[2]} {one.values[number]}" for one in chosen]
