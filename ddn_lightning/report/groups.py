"""Runs that belong together: those that differ in their seed only, or in DDN's two weights."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddn_lightning.report.statistic import Statistic, statistic
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

IDENTITY_KEYS = ("seed_everything", "name", "runs", "ckpt_path", "save_every_n_minutes", "weights_only")
DISPLAY_KEYS = ("trainer.enable_progress_bar", "trainer.default_root_dir", "trainer.log_every_n_steps")
COMPARED_PREFIXES = ("model.init_args.", "data.init_args.", "forgetting.")
COLUMN_KEYS = (
    "model.init_args.buffer_size",
    "model.init_args.distiller",
    "model.init_args.distiller.class_path",
)
ALPHA, BETA = (f"model.init_args.distiller.init_args.{name}" for name in ("alpha", "beta"))
Points = dict[float, tuple[Statistic, Statistic]]


@dataclass(frozen=True)
class Difference:
    """A setting over several runs.

    Args:
        key: Its name.
        values: Its value in each run, as text.
    """

    key: str
    values: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether all runs agree."""
        return len(set(self.values)) == 1


def differences(settings: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """All settings of several runs, side by side.

    >>> differences([{"lr": 0.1, "seed": 1}, {"lr": 0.1}])
    [Difference(key='lr', values=('0.1', '0.1')), Difference(key='seed', values=('1', ''))]
    """
    keys = list(dict.fromkeys(key for one in settings for key in one))
    return [Difference(key, tuple(_as_text(one[key]) if key in one else "" for one in settings)) for key in keys]


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def what_differs(runs: Sequence[RecordedRun]) -> list[str]:
    """The settings in which each run is unlike others, in short; not those that other columns of a table tell."""
    settings = [
        {k: v for k, v in run.config.items() if k.startswith(COMPARED_PREFIXES) and k not in COLUMN_KEYS}
        for run in runs
    ]
    found = [one for one in differences(settings) if len({value for value in one.values if value}) > 1]
    return [
        ", ".join(f"{one.key.rpartition('.')[2]} {one.values[number]}" for one in found if one.values[number])
        for number in range(len(runs))
    ]


def by_seed(runs: Iterable[RecordedRun]) -> list[list[RecordedRun]]:
    """Groups of runs that differ in nothing but their seed, and in what does not change a result."""
    return _grouped(runs, ignored=(*IDENTITY_KEYS, *DISPLAY_KEYS))


def _grouped(runs: Iterable[RecordedRun], ignored: Sequence[str]) -> list[list[RecordedRun]]:
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        kept = {key: value for key, value in run.config.items() if key not in ignored}
        title = "" if run.results is None else run.results.title
        groups.setdefault(json.dumps([title, kept], sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def alpha_beta_points(runs: Iterable[RecordedRun]) -> tuple[Points, Points] | None:
    """ACC and FM by alpha and by beta, empty where no runs differ; the other weight is the one that most runs have."""
    numbers = [run for run in runs if all(isinstance(run.config.get(key), int | float) for key in (ALPHA, BETA))]
    groups = _grouped(numbers, ignored=(*IDENTITY_KEYS, *DISPLAY_KEYS, ALPHA, BETA))
    largest = max(groups, key=len, default=[])
    alphas, betas = (_points(largest, varied, fixed) for varied, fixed in ((ALPHA, BETA), (BETA, ALPHA)))
    varied = [points if len(points) > 1 else {} for points in (alphas, betas)]
    return (varied[0], varied[1]) if any(varied) else None


def _points(runs: Sequence[RecordedRun], varied: str, fixed: str) -> Points:
    counts = Counter(float(run.config[fixed]) for run in runs)
    usual = counts.most_common(1)[0][0] if counts else 0.0
    by_value: dict[float, list[Results]] = {}
    for run in runs:
        if run.config[fixed] == usual and run.results is not None:
            by_value.setdefault(float(run.config[varied]), []).append(run.results)
    points: Points = {}
    for value, results in sorted(by_value.items()):
        acc = statistic(result.acc for result in results)
        fm = statistic(result.fm for result in results)
        if acc is not None and fm is not None:
            points[value] = (acc, fm)
    return points
