"""Names of runs in figures: method, plug-in, the settings that differ, and the seed."""

from collections import Counter
from collections.abc import Sequence

from ddn_lightning.report.names import method_key, plugin_key, title_of
from ddn_lightning.report.seed_group import SeedGroup, by_seed, names_of
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results


def run_labels(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """The label of each run by its name, such as ``ER + DDN, lr 0.1, seed 2``; equal labels have the name behind.

    Args:
        runs: The runs; one without results has its name as its label.
    """
    labels = {run.name: run.name for run in runs}
    for name, members in named_groups(runs).items():
        labels |= {run.name: f"{name}, seed {run.results.seed}" for run in members if run.results is not None}
    counts = Counter(labels.values())
    return {name: f"{label} ({name})" if counts[label] > 1 else label for name, label in labels.items()}


def named_groups(runs: Sequence[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """The runs with results, grouped by what differs besides the seed, by the name of each group."""
    groups = by_seed(run for run in runs if run.results is not None)
    seeds = [SeedGroup({run.results.seed: run for run in members if run.results}) for members in groups]
    return dict(zip(names_of(seeds).values(), groups, strict=True))


def method_title(results: Results) -> str:
    """Method and plug-in as tables call them."""
    return title_of(method_key(results.method), plugin_key(results.plugin))
