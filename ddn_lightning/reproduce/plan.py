"""The runs of a grid: one call of ``ddn fit`` for each cell and seed."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce.grid import NONE, Cell
from ddn_lightning.reproduce.presets import PresetRow, overrides_for
from ddn_lightning.reproduce.shipped_configs import SUFFIX, find_config
from ddn_lightning.runs.config import read_settings

DATA_FOLDER = "data"  # of the configurations in this repository
CLASS_OPTIONS = {  # of a part that is given by the import path of its class; the folders of the others are their names
    "method": "--model",
    "data": "--data",
    "network": "--model.backbone",
    "memory": "--model.memory",
    "plugin": "--model.distiller",
}


@dataclass(frozen=True)
class Options:
    """Options of all runs of a plan.

    Args:
        configs: Folder with the configuration files.
        runs: Parent of the run folders.
        preset: Which rows of ``tuned.csv`` apply.
        data: Folder with the datasets, or ``None`` for the one in the configuration files.
        width: Width of the backbone, or ``None`` for its default.
        extra: Further arguments of ``ddn fit``.
    """

    configs: Path
    runs: Path
    preset: str = "paper"
    data: Path | None = None
    width: int | None = None
    extra: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """One call of ``ddn fit``.

    Args:
        cell: The cell it belongs to.
        seed: Its seed.
        arguments: Arguments after ``fit``, without those for the run folder.
        folder: The run folder.
    """

    cell: Cell
    seed: int
    arguments: tuple[str, ...]
    folder: Path

    def command(self, resume: bool = False) -> list[str]:
        """All arguments of ``ddn``."""
        place = ["--runs", str(self.folder.parent), "--name", self.folder.name]
        return ["fit", *self.arguments, *place, *(["--ckpt_path", "auto"] if resume else [])]


def plan(cells: Sequence[Cell], seeds: Sequence[int], rows: Sequence[PresetRow], options: Options) -> list[Run]:
    """The runs of all cells.

    Args:
        cells: The cells.
        seeds: Seeds of the runs of each cell.
        rows: The presets.
        options: Options of all runs.
    """
    if repeated := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigurationError(f"seeds must differ from each other, got {repeated[0]} more than once")
    presets = list(dict.fromkeys(row.pattern["preset"] for row in rows if "preset" in row.pattern))
    if options.preset not in presets:
        raise ConfigurationError(f"preset must be among {', '.join(presets)}, got {options.preset}")
    runs: list[Run] = []
    for cell in cells:
        sizes = {} if cell.buffer_size == 0 else {"--model.buffer_size": str(cell.buffer_size)}
        width = {} if options.width is None else {"--model.backbone.width": str(options.width)}
        own = {f"--{name}": value for name, value in cell.options}
        overrides = {**overrides_for(rows, options.preset, cell), **sizes, **own, **width}
        runs += [_run(cell, seed, overrides, options) for seed in seeds]
    return runs


def data_options(run: Run) -> list[str]:
    """The ``--data`` options of a run, including those in its configuration files."""
    options: list[str] = []
    for option, value in pairwise(_words(run.arguments)):
        if option in ("-c", "--config"):
            settings = _load(Path(find_config(value))).get("data", {})
            if "class_path" in settings:
                options += ["--data", settings["class_path"]]
            for name, setting in settings.get("init_args", {}).items():
                options += [f"--data.{name}", json.dumps(setting)]
        elif option == "--data" or option.startswith("--data."):
            options += [option, value]
    return options


def _words(arguments: Iterable[str]) -> list[str]:
    """The arguments, with options and values apart."""
    return [word for argument in arguments for word in argument.split("=", 1 if argument[:2] == "--" else 0)]


def _given_files(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The contents of the configuration files among further arguments."""
    named = (value for option, value in pairwise(_words(arguments)) if option in ("-c", "--config"))
    return [_load(Path(find_config(name))) for name in named]


def _run(cell: Cell, seed: int, overrides: Mapping[str, str], options: Options) -> Run:
    paths, classes = _parts(cell, options.configs)
    settings = [_load(path) for path in paths]
    arguments = [argument for path in paths for argument in ("-c", str(path))]
    arguments += [argument for pair in (*classes.items(), *overrides.items()) for argument in pair]
    roots = (root for one in settings for root in _data_root(one, options.data))
    arguments += [*roots, *options.extra, "--seed_everything", str(seed)]
    content: list[Any] = [settings, {**classes, **overrides}, list(options.extra), *_given_files(options.extra)]
    # runs with other settings get another folder
    fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    parts = [cell.setting, cell.data, cell.network, cell.buffer_size, cell.method, cell.memory, cell.plugin]
    names = [short_name(str(part)) for part in parts] + [cell.variant.replace("=", "").replace(" ", "-")]
    name = "-".join(name for name in names if name not in ("", NONE))
    return Run(cell, seed, tuple(arguments), options.runs / f"{name}-seed{seed}-{fingerprint}")


def _parts(cell: Cell, configs: Path) -> tuple[list[Path], dict[str, str]]:
    """The configuration files of a cell, and the options of the parts that are classes."""
    paths, classes = [configs / f"base{SUFFIX}"], {}
    for axis in ("method", "data", "setting", "network", "memory", "plugin"):
        value = getattr(cell, axis)
        if axis in CLASS_OPTIONS and is_class_path(value):
            classes[CLASS_OPTIONS[axis]] = value
        elif value not in ("", NONE):
            paths.append(_file(axis, value, configs))
    return [*paths, *(_file("", name, configs) for name in cell.configs)], classes


def _file(axis: str, value: str, configs: Path) -> Path:
    path = Path(value) if value.endswith(SUFFIX) else configs / axis / f"{value}{SUFFIX}"
    if not path.is_file():
        names = sorted(found.stem for found in (configs / axis).glob(f"*{SUFFIX}"))
        others = "a YAML file" + (axis in CLASS_OPTIONS) * " or the import path of a class"
        raise ConfigurationError(f"{axis or 'configs'} must be among {', '.join(names)}, {others}, got {value}")
    return path


def is_class_path(value: str) -> bool:
    """Whether a part is the import path of a class.

    >>> [is_class_path(value) for value in ("my_module.Mine", "er", "mine.yaml", "./mine.yaml")]
    [True, False, False, False]
    """
    return "." in value and not value.endswith(SUFFIX) and all(map(str.isidentifier, value.split(".")))


def short_name(part: str) -> str:
    """The name of a part without folders, suffix and module.

    >>> short_name("my_module.Mine"), short_name("mine/method.yaml"), short_name("er")
    ('Mine', 'method', 'er')
    """
    return Path(part).stem if part.endswith(SUFFIX) else part.rpartition(".")[2]


def _data_root(settings: Mapping[str, Any], folder: Path | None) -> list[str]:
    """The option that moves the root of a dataset to ``folder``."""
    root = settings.get("data", {}).get("init_args", {}).get("root")
    if folder is None or root is None:
        return []
    if not Path(root).is_relative_to(DATA_FOLDER):
        raise ConfigurationError(f"with --data, the root of a dataset must be in {DATA_FOLDER}/, got {root}")
    return ["--data.root", str(folder / Path(root).relative_to(DATA_FOLDER))]


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigurationError(f"configuration file must exist, got {path}")
    return read_settings(path)
