"""The runs that fill the selected cells of a table."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from ddn_lightning import methods
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.names import METHODS
from ddn_lightning.report.collection_table import ARMS
from ddn_lightning.report.paper import PAPER_TABLES, Target, paper_table
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.reproduce.presets import PresetRow, overrides_for
from ddn_lightning.runs.config import read_settings
from ddn_lightning.shipped_configs import find_config

PAPER_RUNS = {"online": 10, "offline": 3}  # DDN paper, section 6.1
DATA_FOLDER = "data"  # of the configurations in this repository
COLLECTION = "collection"
TABLES = (*PAPER_TABLES, "alpha_beta", "digits", COLLECTION)
ALPHAS = (0, 0.5, 1, 2)
BETAS = (0, 0.5, 0.9, 1)
HOSTS = ("er", "derpp", "cls_er", "er_ace")  # the paper combines these with DDN
BOUNDS = ("finetune", "joint")
OTHERS = tuple(facts.key for facts in METHODS.values() if facts.key not in (*HOSTS, *BOUNDS))
ABLATIONS = ("hard", "random_labels", "label_smoothing", "l2y")
BEDS = (("offline", "digits", 100), ("online", "image_folder", 200))  # of the collection: setting, data, memory
SELECTORS = {"methods": "method", "datasets": "data", "buffers": "buffer_size", "plugins": "plugin"}  # fields of a cell


@dataclass(frozen=True)
class Defaults:
    """What a table is made with unless the command says otherwise.

    Args:
        datasets: Its datasets; if empty, all.
        seeds: Its seeds; if empty, 1 to the number of runs in the paper.
        files: Further configuration files of the runs on a dataset, without suffix.
    """

    datasets: Sequence[str] = ()
    seeds: Sequence[int] = ()
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)


DEFAULTS = {
    COLLECTION: Defaults(
        datasets=("digits",),
        seeds=range(11, 16),  # methods and settings were chosen on others
        files={"digits": ("network/resnet18_digits", "statistics/both"), "image_folder": ("statistics/both",)},
    )
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
        files: Further configuration files of the runs on a dataset, without suffix.
    """

    configs: Path
    runs: Path
    preset: str = "paper"
    data: Path | None = None
    width: int | None = None
    extra: Sequence[str] = ()
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)


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


def select(targets: Sequence[Target], wanted: Mapping[str, Sequence[str | int]]) -> list[Target]:
    """The cells of a table that have the wanted values.

    Args:
        targets: The cells.
        wanted: Values by the keys of :data:`SELECTORS`; an empty sequence selects all.

    Raises:
        ConfigurationError: If no cell has a wanted value, or if no cell is left.
    """
    selected = list(targets)
    for name, values in wanted.items():
        choices = dict.fromkeys(getattr(target.cell, SELECTORS[name]) for target in targets)
        for value in values:
            if value not in choices:
                raise ConfigurationError(f"{name} must be among {', '.join(map(str, choices))}, got {value}")
        selected = [target for target in selected if not values or getattr(target.cell, SELECTORS[name]) in values]
    if not selected:
        raise ConfigurationError(f"the selection must leave at least one cell of the table, got {dict(wanted)}")
    return selected


def plan(targets: Sequence[Target], seeds: Sequence[int], rows: Sequence[PresetRow], options: Options) -> list[Run]:
    """The runs of all cells whose method is available.

    Args:
        targets: The cells.
        seeds: Seeds of the runs of each cell; if empty, 1 to the number of runs in the paper.
        rows: The presets.
        options: Options of all runs.
    """
    if repeated := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigurationError(f"seeds must differ from each other, got {repeated[0]} more than once")
    presets = list(dict.fromkeys(row.pattern["preset"] for row in rows if "preset" in row.pattern))
    if options.preset not in presets:
        raise ConfigurationError(f"preset must be among {', '.join(presets)}, got {options.preset}")
    runs: list[Run] = []
    for cell in (target.cell for target in targets if is_available(target.cell, options.configs)):
        overrides = {**overrides_for(rows, options.preset, cell), **_cell_options(cell)}
        if options.width is not None:
            overrides["--model.backbone.width"] = str(options.width)
        cell_seeds = seeds or range(1, PAPER_RUNS[cell.setting] + 1)
        runs += [_run(cell, seed, overrides, options) for seed in cell_seeds]
    return runs


def is_available(cell: Cell, configs: Path) -> bool:
    """Whether this folder has a configuration of the cell's method."""
    return (configs / "method" / f"{cell.method}.yaml").is_file()


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


def _cell_options(cell: Cell) -> dict[str, str]:
    options = {} if cell.buffer_size == 0 else {"--model.buffer_size": str(cell.buffer_size)}
    pairs = (pair.partition("=") for pair in cell.variant.split())
    return options | {f"--model.distiller.{name}": value for name, _, value in pairs}


def _run(cell: Cell, seed: int, overrides: Mapping[str, str], options: Options) -> Run:
    names = ["base", f"method/{cell.method}", f"data/{cell.data}", f"setting/{cell.setting}"]
    if cell.plugin != "none":
        names.append(f"plugin/{cell.plugin}")
    names += options.files.get(cell.data, ())
    paths = [options.configs / f"{name}.yaml" for name in names]
    settings = [_load(path) for path in paths]
    arguments = [argument for path in paths for argument in ("-c", str(path))]
    arguments += [argument for pair in overrides.items() for argument in pair]
    arguments += [*_data_root(settings[2], options.data), *options.extra, "--seed_everything", str(seed)]
    content = json.dumps([settings, overrides, list(options.extra), *_given_files(options.extra)], sort_keys=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:8]  # runs with other settings get another folder
    parts = [cell.setting, cell.data, cell.buffer_size, cell.method, cell.plugin, cell.variant.replace("=", "")]
    name = "-".join(str(part).replace(" ", "-") for part in parts if part not in ("", "none"))
    return Run(cell, seed, tuple(arguments), options.runs / f"{name}-seed{seed}-{fingerprint}")


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


def table(name: str) -> list[Target]:
    """The cells of one of :data:`TABLES`."""
    own_tables = {"alpha_beta": _alpha_beta, "digits": _digits, COLLECTION: _collection}
    return own_tables[name]() if name in own_tables else list(paper_table(name))


def _alpha_beta() -> list[Target]:
    """DDN's two weights on Split CIFAR-10: a figure in the paper, whose best point is a cell of Table 1."""
    (best,) = [target for target in paper_table("table1") if target.cell == Cell("online", "cifar10", 200, "er", "ddn")]
    grid = []
    for alpha, beta in product(ALPHAS, BETAS):
        cell = replace(best.cell, variant=f"alpha={alpha} beta={beta}")
        grid.append(replace(best, cell=cell) if (alpha, beta) == (1, 0.9) else Target(cell))
    return grid


def _digits() -> list[Target]:
    """Every method on Split Digits, which is not in the paper: minutes on a CPU, without a download."""
    bounds = [Cell("offline", "digits", 0, method) for method in BOUNDS]
    hosts = [Cell("offline", "digits", 100, *pair) for pair in product(HOSTS, ("none", "ddn", "cba"))]
    others = [Cell("offline", "digits", 100, method) for method in OTHERS]
    ablations = [Cell("offline", "digits", 100, "er", plugin) for plugin in ABLATIONS]
    return [Target(cell) for cell in (*bounds, *hosts, *others, *ablations)]


def _collection() -> list[Target]:
    """Every method with a memory, on Split Digits or on a folder of images, with those plug-ins that it takes."""
    takes = {facts.key: getattr(methods, name).takes_distiller() for name, facts in METHODS.items()}
    return [
        Target(Cell(*bed, method, plugin))
        for bed in BEDS
        for method in takes
        if method not in BOUNDS
        for plugin in ARMS
        if plugin == "none" or takes[method]
    ]
