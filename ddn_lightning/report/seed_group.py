"""Runs of one configuration with several seeds: their names, and the baseline of each group."""

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ddn_lightning import methods
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.names import method_key, plugin_key, title_of
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

Statistics = Literal["running", "calibrated"]
STATISTICS: tuple[Statistics, ...] = ("running", "calibrated")
Measure = Literal["acc", "fm", "task_il_acc"]
Budget = Literal["samples", "bytes"]
MODEL = "model.init_args."
TEST_BED = ("data.", f"{MODEL}backbone", "trainer.", "forgetting.over", "forgetting.reference")
CONTROLS = {"old_memory_weight": 0, "replay_steps": 1, "replay_weight": 1, "running_statistics": "all"}  # when off
# settings that do not change a result
IGNORED_KEYS = (
    *("seed_everything", "name", "runs", "ckpt_path", "save_every_n_minutes", "weights_only", "grow"),
    "chosen_on_seeds",
    *("trainer.enable_progress_bar", "trainer.default_root_dir", "trainer.log_every_n_steps"),
    *(f"anytime.{name}" for name in ("every_n_steps", "images", "seed", "statistics", "unseen_tasks")),
)
COMPARED_PREFIXES = (MODEL, "data.init_args.", "forgetting.")
CLASS = ".class_path"
COLUMN_KEYS = (f"{MODEL}buffer_size", f"{MODEL}distiller", f"{MODEL}distiller.class_path")  # have columns of their own


@dataclass(frozen=True)
class Difference:
    """A setting and its value in each of several runs, as text; empty where a run does not have it."""

    key: str
    values: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether all runs agree."""
        return len(set(self.values)) == 1

    def describe(self, run: int) -> str:
        """The last part of the key with the value in one run, such as ``lr 0.1`` or ``memory RingBuffer``."""
        value = self.values[run].rpartition(".")[2] if self.key.endswith(CLASS) else self.values[run]
        return f"{self.key.removesuffix(CLASS).rpartition('.')[2]} {value}"


def differences(settings: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """All settings of several runs, side by side.

    >>> differences([{"lr": 0.1, "seed": 1}, {"lr": 0.1}])
    [Difference(key='lr', values=('0.1', '0.1')), Difference(key='seed', values=('1', ''))]
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    return [Difference(key, tuple(_as_text(one[key]) if key in one else "" for one in settings)) for key in keys]


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def varied_settings(runs: Iterable[RecordedRun]) -> list[Difference]:
    """The settings to which at least two runs give different values; not those with columns of their own."""
    settings = [
        {k: v for k, v in run.config.items() if k.startswith(COMPARED_PREFIXES) and k not in COLUMN_KEYS}
        for run in runs
    ]
    classes = {key for one in settings for key in one if key.endswith(CLASS)}
    for one in settings:
        # where another run has a memory or an optimizer of its own, none is a value of the same setting
        one |= {key: one.pop(part) for key in classes if (part := key.removesuffix(CLASS)) in one}
    return [one for one in differences(settings) if len({value for value in one.values if value}) > 1]


def by_seed(runs: Iterable[RecordedRun], ignored: Sequence[str] = ()) -> list[list[RecordedRun]]:
    """Groups of runs that differ only in their seed, in settings that do not change a result, and in ``ignored``."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        settings = {key: value for key, value in run.config.items() if key not in (*IGNORED_KEYS, *ignored)}
        title = "" if run.results is None else f"{run.results.title} {run.results.measures}"
        if not run.config:  # nobody knows what else it shares with others
            title += f" {run.folder}"
        groups.setdefault(json.dumps([title, settings], sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def one_per_seed(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """The first run of each seed, of those with results: a repeat is no further evidence."""
    known: dict[int, RecordedRun] = {}
    for run in runs:
        if run.results is not None:
            known.setdefault(run.results.seed, run)
    return list(known.values())


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Finished runs that differ only in their seed, by seed.

    Args:
        runs: The runs.
        budget: The unit in which comparable groups have equal memories.
    """

    runs: Mapping[int, RecordedRun]
    budget: Budget = "samples"

    @property
    def first(self) -> RecordedRun:
        """One of the runs, for the settings that all share."""
        return next(iter(self.runs.values()))

    @property
    def results(self) -> Results:
        """The results of that run."""
        assert self.first.results is not None
        return self.first.results

    @cached_property
    def title(self) -> str:
        """Method and plug-in as tables call them."""
        return title_of(method_key(self.results.method), plugin_key(self.results.plugin))

    @cached_property
    def test_bed(self) -> str:
        """Data, network, memory and training settings, as JSON: groups are comparable if these are equal."""
        settings = {k: v for k, v in self.first.config.items() if k.startswith(TEST_BED) and k not in IGNORED_KEYS}
        known = {key: value for key, value in settings.items() if value is not None}
        sizes = [self.results.dataset, self.memory_size, len(self.results.matrix)]
        return json.dumps([sizes, known], sort_keys=True, default=str)

    @property
    def memory_size(self) -> int | str:
        """Samples in memory; or the bytes that were given, or else those that are kept."""
        if self.budget == "samples" or not self.results.stored_bytes:
            return self.results.buffer_size
        given = self.first.config.get(f"{MODEL}buffer_bytes")
        return f"{sum(self.results.stored_bytes.values()) if given is None else given} bytes"

    @property
    def is_plain(self) -> bool:
        """Whether it is the method alone: no plug-in, and all controls off or as the method has them by default."""
        options, defaults = self.first.config, _defaults(self.results.method)
        off = {name: defaults.get(name, value) for name, value in CONTROLS.items()}
        is_control = any(options.get(MODEL + name, value) != value for name, value in off.items())
        return self.results.plugin is None and not is_control

    @cached_property
    def num_changed_options(self) -> int:
        """How many arguments of the method differ from the defaults of its class."""
        defaults = _defaults(self.results.method)
        options = [
            (key.removeprefix(MODEL), value) for key, value in self.first.config.items() if key.startswith(MODEL)
        ]
        arguments = [(key.partition(".")[0], value) for key, value in options]  # all keys of a part are one argument
        return len({name for name, value in arguments if name in defaults and value != defaults[name]})

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """Those of its seeds by which the settings were chosen, as far as any of its runs records it."""
        chose = {seed for run in self.runs.values() if run.results is not None for seed in run.results.chosen_on_seeds}
        return tuple(sorted(chose & set(self.runs)))

    def values(self, name: Measure, statistics: Statistics) -> dict[int, float | None]:
        """A measure by seed, with these BatchNorm statistics."""
        return {seed: _measure(run.results, name, statistics) for seed, run in self.runs.items()}

    @property
    def cpu_minutes(self) -> dict[int, float | None]:
        """Processor time by seed."""
        return {seed: None if run.results is None else run.results.cpu_minutes for seed, run in self.runs.items()}


def _measure(results: Results | None, name: Measure, statistics: Statistics) -> float | None:
    if results is None:
        return None
    is_calibrated = results.statistics == "memory"  # evaluated with calibrated statistics only
    measures = {"acc": results.acc, "fm": results.fm, "task_il_acc": results.task_il_acc}
    if (statistics == "calibrated") == is_calibrated:
        return measures[name]
    calibrated = {} if is_calibrated else {"acc": results.calibrated_acc, "fm": results.calibrated_fm}
    return calibrated.get(name)


def _defaults(method: str) -> dict[str, Any]:
    """Default arguments of a method of this package, as YAML reads them; empty for a user's own class."""
    found = getattr(methods, method, None)
    if not isinstance(found, type):
        return {}
    arguments = inspect.signature(found).parameters.values()
    defaults = {arg.name: arg.default for arg in arguments if arg.default is not inspect.Parameter.empty}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def baselines_of(groups: Sequence[SeedGroup], wanted: str | None = None) -> dict[SeedGroup, SeedGroup | None]:
    """The baseline of each group, on the same test bed; a baseline is its own.

    Args:
        groups: The groups.
        wanted: Name of the baseline: from :func:`names_of`, of its method, or of one of its runs. By default the
            baseline is the method alone, with as many default options as possible.

    Raises:
        ConfigurationError: If no group has that name.
    """
    if wanted is None:
        candidates = [group for group in groups if group.is_plain]
    else:
        labels = names_of(groups)
        candidates = [group for group in groups if labels[group].casefold() == wanted.casefold()]
        candidates = candidates or [group for group in groups if _is_named(group, wanted)]
        if not candidates and groups:
            known = "; ".join(labels.values())
            raise ConfigurationError(f"baseline must be the name of a run, or one of: {known}; got {wanted}")
    found: dict[tuple[str, str], SeedGroup] = {}
    for group in sorted(candidates, key=_rank):
        found.setdefault(_key(group, wanted), group)
    return {group: found.get(_key(group, wanted)) for group in groups}


def _rank(group: SeedGroup) -> tuple[bool, bool, int, int]:
    """Sort key: the plainest first, and last those evaluated with calibrated statistics only."""
    return not group.is_plain, group.results.statistics == "memory", group.num_changed_options, -len(group.runs)


def _key(group: SeedGroup, wanted: str | None) -> tuple[str, str]:
    return group.test_bed, group.results.method if wanted is None else ""


def _is_named(group: SeedGroup, wanted: str) -> bool:
    results = group.results
    names = [group.title, results.title, *(run.name for run in group.runs.values())]
    if results.plugin is None:
        names.append(method_key(results.method))
    return wanted.casefold() in (name.casefold() for name in names)


def names_of(groups: Sequence[SeedGroup]) -> dict[SeedGroup, str]:
    """A name for each group: the method, its test bed where these vary, and settings that differ from its baseline."""
    baselines = baselines_of(groups)
    varied = varied_settings(group.first for group in groups)
    sizes = {(group.results.dataset, group.memory_size) for group in groups}
    index = {group: number for number, group in enumerate(groups)}
    names = {}
    for group, number in index.items():
        baseline = baselines[group]
        settings = [
            one.describe(number)
            for one in varied
            if one.values[number]
            and (
                baseline is None
                or one.key.startswith(TEST_BED)
                or one.values[number] != one.values[index[baseline]]
                or (one.key.endswith(CLASS) and one.values[number] != "null")  # a trick of the baseline itself
            )
        ]
        prefix = f"{group.results.dataset}, memory {group.memory_size}: " if len(sizes) > 1 else ""
        names[group] = prefix + ", ".join([group.title, *settings])
    counts = Counter(names.values())
    return {group: f"{name} ({group.first.name})" if counts[name] > 1 else name for group, name in names.items()}
