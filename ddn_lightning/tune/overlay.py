"""What a search gives: a YAML overlay for ``ddn fit``, and rows of a preset for ``ddn reproduce``."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ddn_lightning.report.paper import Cell
from ddn_lightning.report.tables import as_ranges, csv_table
from ddn_lightning.report.tuning import ArmRecord, SearchRecord
from ddn_lightning.reproduce.presets import COLUMNS
from ddn_lightning.runs.config import load_yaml
from ddn_lightning.tune.ranges import as_option

CLASS_PATH, ARGUMENTS = "class_path", "init_args"


def overlay(search: SearchRecord, arm: ArmRecord, fixed: Mapping[str, str], classes: Sequence[str]) -> str:
    """The options of the best trial as YAML for ``ddn fit -c``, with their provenance in comments.

    Args:
        search: The search.
        arm: A study with a best trial.
        fixed: The other options of all trials, from the preset, such as ``--model.momentum``: ``0``.
        classes: Names of options whose value is a class.
    """
    options = {name.removeprefix("--"): load_yaml(value) for name, value in fixed.items()}
    tree: dict[str, Any] = {"chosen_on_seeds": sorted(search.seeds)}
    options |= _best(arm)
    built = [name.rpartition(".")[2] for name in options if any(other.startswith(f"{name}.") for other in options)]
    for name, value in options.items():
        _insert(tree, name.split("."), value, [*classes, *built])
    lines = [f"# {key}: {value}\n" for key, value in provenance(search, arm).items()]
    return "".join(lines) + str(yaml.safe_dump(tree, sort_keys=False))


def preset_rows(search: SearchRecord, fixed: Mapping[Cell, Mapping[str, str]]) -> str:
    """A row of ``tuned.csv`` for each study with a best trial, for ``ddn reproduce --preset``.

    Args:
        search: The search.
        fixed: The other options of all trials of a cell, from the preset.
    """
    rows = []
    for arm in search.arms:
        if arm.best is not None:
            tuned = {f"--{name}": as_option(value) for name, value in _best(arm).items()}
            chosen = {"--chosen_on_seeds": json.dumps(sorted(search.seeds))}
            words = [word for pair in {**fixed[arm.cell], **tuned, **chosen}.items() for word in pair]
            cell, source = arm.cell, "; ".join(f"{key} {value}" for key, value in provenance(search, arm).items())
            values = [search.name, cell.setting, cell.data, cell.buffer_size, cell.method, cell.plugin]
            rows.append(dict(zip(COLUMNS, [*values, shlex.join(words), source], strict=True)))
    return csv_table(rows)


def provenance(search: SearchRecord, arm: ArmRecord) -> dict[str, str]:
    """Where the values of a study's best trial come from."""
    assert arm.best is not None
    counts = f"{len(arm.trials)} of {search.trials}, {arm.count('pruned')} pruned, {arm.count('diverged')} diverged"
    ranges = [f"{name} {dict(plain)}" for name, plain in arm.ranges.items()]
    return {
        "study": f"{arm.name} of {search.name}, by {search.command}",
        "protocol": search.protocol,
        "trials": counts,
        "best": f"trial {arm.best + 1}, ACC {arm.trials[arm.best].score:.2f} on validation images",
        "seeds that chose": as_ranges(sorted(search.seeds)),
        "ranges": "; ".join(ranges),
        "versions": ", ".join(f"{package} {version}" for package, version in search.versions.items()),
    }


def _best(arm: ArmRecord) -> Mapping[str, Any]:
    assert arm.best is not None
    return arm.trials[arm.best].values


def _insert(tree: dict[str, Any], path: Sequence[str], value: Any, classes: Sequence[str]) -> None:
    """Write an option into a configuration: the arguments of a class are under ``init_args``.

    >>> tree = {}
    >>> _insert(tree, ["model", "distiller", "alpha"], 1, ["model", "distiller"])
    >>> tree
    {'model': {'init_args': {'distiller': {'init_args': {'alpha': 1}}}}}
    """
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
        tree = tree.setdefault(ARGUMENTS, {}) if name in classes else tree
    if path[-1] in classes:
        tree.setdefault(path[-1], {})[CLASS_PATH] = value
    else:
        tree[path[-1]] = value
