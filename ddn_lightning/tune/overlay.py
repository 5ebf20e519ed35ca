"""The result of a search: a YAML overlay for ``ddn fit``, and rows of a preset for ``ddn reproduce``."""

import json
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import yaml

from ddn_lightning.report.tables import as_ranges, csv_table
from ddn_lightning.reproduce.grid import as_option
from ddn_lightning.reproduce.presets import COLUMNS, FILE_NAME
from ddn_lightning.runs.config import load_yaml
from ddn_lightning.runs.files import write_text
from ddn_lightning.tune.ranges import Value
from ddn_lightning.tune.search import Search
from ddn_lightning.tune.study import DIVERGED, ArmStudy, score_of, values_of

PACKAGES = ("ddn-lightning", "optuna", "torch")


def write_results(search: Search, studies: Sequence[ArmStudy], classes: Sequence[str]) -> None:
    """Write an overlay and figures for each study, and the preset.

    Args:
        search: The settings of all studies.
        studies: The studies.
        classes: Names of options whose value is a class.
    """
    for study in studies:
        if study.best is not None:
            write_text(search.folder / f"{study.arm.name}.yaml", overlay(study, classes))
        study.draw(search.folder)
    if any(study.best is not None for study in studies):
        write_text(search.folder / FILE_NAME, preset_rows(search, studies))


def overlay(study: ArmStudy, classes: Sequence[str]) -> str:
    """The options of the best trial as YAML for ``ddn fit -c``, with their provenance in comments."""
    fixed = study.search.overrides(study.arm.cell)
    options = {name.removeprefix("--"): load_yaml(value) for name, value in fixed.items()} | best_values(study)
    built = [name.rpartition(".")[2] for name in options if any(other.startswith(f"{name}.") for other in options)]
    tree: dict[str, Any] = {"chosen_on_seeds": sorted(study.search.seeds)}
    for name, value in options.items():
        _insert(tree, name.split("."), value, [*classes, *built])
    lines = [f"# {key}: {value}\n" for key, value in provenance(study).items()]
    return "".join(lines) + str(yaml.safe_dump(tree, sort_keys=False))


def preset_rows(search: Search, studies: Sequence[ArmStudy]) -> str:
    """A row of ``tuned.csv`` for each study with a best trial, for ``ddn reproduce --preset``."""
    rows = []
    for study in (one for one in studies if one.best is not None):
        cell = study.arm.cell
        tuned = {f"--{name}": as_option(value) for name, value in best_values(study).items()}
        options = {**search.overrides(cell), **tuned, "--chosen_on_seeds": json.dumps(sorted(search.seeds))}
        words = shlex.join(word for pair in options.items() for word in pair)
        source = "; ".join(f"{key} {value}" for key, value in provenance(study).items())
        values = [search.folder.name, cell.setting, cell.data, cell.buffer_size, cell.method, cell.plugin]
        rows.append(dict(zip(COLUMNS, [*values, words, source], strict=True)))
    return csv_table(rows)


def provenance(study: ArmStudy) -> dict[str, str]:
    """The search behind the values of a study's best trial."""
    search, trials, best = study.search, study.trials, study.best
    assert best is not None
    return {
        "study": f"{study.arm.name} of {search.folder.name}, by {search.command}",
        "protocol": search.protocol,
        "trials": f"{len(trials)} of {search.trials}, {sum(one.user_attrs[DIVERGED] for one in trials)} diverged",
        "best": f"trial {best.number + 1}, ACC {score_of(best):.2f} on validation images",
        "seeds that chose": as_ranges(sorted(search.seeds)),
        "ranges": "; ".join(f"{one.option} {one.as_plain()}" for one in study.arm.ranges),
        "versions": ", ".join(f"{package} {version(package)}" for package in PACKAGES),
    }


def best_values(study: ArmStudy) -> dict[str, Value]:
    """The values of a study's best trial."""
    assert study.best is not None
    return values_of(study.best, study.arm.ranges)


def _insert(tree: dict[str, Any], path: Sequence[str], value: Any, classes: Sequence[str]) -> None:
    """Write an option into a configuration: the arguments of a class are under ``init_args``.

    >>> tree = {}
    >>> _insert(tree, ["model", "distiller", "alpha"], 1, ["model", "distiller"])
    >>> tree
    {'model': {'init_args': {'distiller': {'init_args': {'alpha': 1}}}}}
    """
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
        tree = tree.setdefault("init_args", {}) if name in classes else tree
    if path[-1] in classes:
        tree.setdefault(path[-1], {})["class_path"] = value
    else:
        tree[path[-1]] = value
