"""From a table and a selection of its cells to the runs that fill them."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.names import METHODS
from ddn_lightning.report.paper import PAPER_TABLES, Cell, Target, paper_table
from ddn_lightning.reproduce.presets import PresetRow, overrides_for
from ddn_lightning.runs.config import read_settings

PAPER_RUNS = {"online": 10, "offline": 3}  # DDN paper, section 6.1
DATA_FOLDER = "data"  # where the shipped configurations look for datasets
TABLES = (*PAPER_TABLES, "alpha_beta", "digits")
ALPHAS = (0, 0.5, 1, 2)
BETAS = (0, 0.5, 0.9, 1)
HOSTS = ("er", "derpp", "cls_er", "er_ace")  # those that the paper puts DDN on
BOUNDS = ("finetune", "joint")
OTHERS = tuple(facts.key for facts in METHODS.values() if facts.key not in (*HOSTS, *BOUNDS))
ABLATIONS = ("random_labels", "label_smoothing", "l2y")


@dataclass(frozen=True)
class Selection:
    """Which cells of a table to fill. An empty sequence stands for all.

    Args:
        methods: Methods.
        datasets: Datasets.
        buffers: Sizes of the memory.
        plugins: Plug-ins; ``none`` for a method alone.
    """

    methods: Sequence[str] = ()
    datasets: Sequence[str] = ()
    buffers: Sequence[int] = ()
    plugins: Sequence[str] = ()

    def of(self, targets: Sequence[Target]) -> list[Target]:
        """The selected cells. A value that no cell has is a mistake."""
        parts: dict[str, tuple[Sequence[Any], Callable[[Cell], Any]]] = {
            "methods": (self.methods, lambda cell: cell.method),
            "datasets": (self.datasets, lambda cell: cell.data),
            "buffers": (self.buffers, lambda cell: cell.buffer_size),
            "plugins": (self.plugins, lambda cell: cell.plugin),
        }
        for name, (wanted, value_of) in parts.items():
            choices = list(dict.fromkeys(value_of(target.cell) for target in targets))
            for value in wanted:
                if value not in choices:
                    raise ConfigurationError(f"{name} must be among {', '.join(map(str, choices))}, got {value}")
        selected = [
            target
            for target in targets
            if all(not wanted or value_of(target.cell) in wanted for wanted, value_of in parts.values())
        ]
        if not selected:
            raise ConfigurationError(f"the selection must leave at least one cell of the table, got {self}")
        return selected


@dataclass(frozen=True)
class Options:
    """What is the same in all runs of a plan.

    Args:
        configs: Folder with the configuration files.
        runs: Folder for the folders of all runs.
        preset: Which rows of ``tuned.csv`` apply.
        data: Folder with the datasets, or ``None`` for what the configuration files say.
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
        cell: The cell that it belongs to.
        seed: Its seed.
        arguments: What comes after ``fit``, but for where to write.
        folder: Where it writes.
    """

    cell: Cell
    seed: int
    arguments: tuple[str, ...]
    folder: Path

    def command(self, resume: bool = False) -> list[str]:
        """All arguments of ``ddn``."""
        place = ["--runs", str(self.folder.parent), "--name", self.folder.name]
        return ["fit", *self.arguments, *place, *(["--ckpt_path", "last"] if resume else [])]


def plan(targets: Sequence[Target], seeds: Sequence[int], rows: Sequence[PresetRow], options: Options) -> list[Run]:
    """The runs of all cells whose method is there.

    Args:
        targets: The cells.
        seeds: A run for each; empty for as many as the paper has, counted from 1.
        rows: The presets.
        options: What is the same in all runs.
    """
    if repeated := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigurationError(f"seeds must differ from each other, got {repeated[0]} more than once")
    presets = list(dict.fromkeys(row.preset for row in rows if row.preset))
    if options.preset not in presets:
        raise ConfigurationError(f"preset must be among {', '.join(presets)}, got {options.preset}")
    runs: list[Run] = []
    for cell in (target.cell for target in targets if is_available(target.cell, options.configs)):
        overrides = {**overrides_for(rows, options.preset, cell), **_options_of(cell), **_width(options.width)}
        cell_seeds = seeds or range(1, PAPER_RUNS[cell.setting] + 1)
        runs += [_run(cell, seed, overrides, options) for seed in cell_seeds]
    return runs


def is_available(cell: Cell, configs: Path) -> bool:
    """Whether there is a configuration for the cell's method in this folder, which may be one of the user's own."""
    return (configs / "method" / f"{cell.method}.yaml").is_file()


def data_options(run: Run) -> list[str]:
    """The options of a run that say which data it learns, as pairs; a configuration file counts as what it says."""
    words = [word for argument in run.arguments for word in argument.split("=", 1 if argument[:2] == "--" else 0)]
    options: list[str] = []
    for option, value in pairwise(words):
        if option in ("-c", "--config"):
            settings = _load(Path(value)).get("data", {})
            if "class_path" in settings:
                options += ["--data", settings["class_path"]]
            for name, setting in settings.get("init_args", {}).items():
                options += [f"--data.{name}", json.dumps(setting)]
        elif option == "--data" or option.startswith("--data."):
            options += [option, value]
    return options


def _options_of(cell: Cell) -> dict[str, str]:
    options = {} if cell.buffer_size == 0 else {"--model.buffer_size": str(cell.buffer_size)}
    pairs = (pair.partition("=") for pair in cell.variant.split())
    return options | {f"--model.distiller.{name}": value for name, _, value in pairs}


def _width(width: int | None) -> dict[str, str]:
    return {} if width is None else {"--model.backbone.width": str(width)}


def _run(cell: Cell, seed: int, overrides: Mapping[str, str], options: Options) -> Run:
    names = ["base", f"method/{cell.method}", f"data/{cell.data}", f"setting/{cell.setting}"]
    if cell.plugin != "none":
        names.append(f"plugin/{cell.plugin}")
    paths = [options.configs / f"{name}.yaml" for name in names]
    settings = [_load(path) for path in paths]
    arguments = [argument for path in paths for argument in ("-c", str(path))]
    arguments += [argument for pair in overrides.items() for argument in pair]
    arguments += [*_root(settings[2], options.data), *options.extra, "--seed_everything", str(seed)]
    mark = _fingerprint([settings, overrides, list(options.extra)])
    parts = [cell.setting, cell.data, cell.buffer_size, cell.method, cell.plugin, cell.variant.replace("=", "")]
    name = "-".join(str(part).replace(" ", "-") for part in parts if part not in ("", "none"))
    return Run(cell, seed, tuple(arguments), options.runs / f"{name}-seed{seed}-{mark}")


def _root(settings: Mapping[str, Any], folder: Path | None) -> list[str]:
    """Where to find the dataset, if not where its configuration says."""
    root = settings.get("data", {}).get("init_args", {}).get("root")
    if folder is None or root is None:
        return []
    if not Path(root).is_relative_to(DATA_FOLDER):
        raise ConfigurationError(f"with --data, the root of a dataset must be in {DATA_FOLDER}/, got {root}")
    return ["--data.root", str(folder / Path(root).relative_to(DATA_FOLDER))]


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigurationError(f"expected the configuration file {path}, which is not there")
    return read_settings(path)


def _fingerprint(settings: object) -> str:
    """Eight characters that change with any setting, so that no run passes for another."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def table(name: str) -> list[Target]:
    """The cells of one of :data:`TABLES`."""
    if name == "alpha_beta":
        return _alpha_beta()
    if name == "digits":
        return _digits()
    return paper_table(name)


def _alpha_beta() -> list[Target]:
    """DDN's two weights on Split CIFAR-10. The paper shows a figure; its best point is a cell of Table 1."""
    (best,) = [target for target in paper_table("table1") if target.cell == Cell("online", "cifar10", 200, "er", "ddn")]
    grid = []
    for alpha, beta in product(ALPHAS, BETAS):
        cell = replace(best.cell, variant=f"alpha={alpha} beta={beta}")
        grid.append(replace(best, cell=cell) if (alpha, beta) == (1, 0.9) else Target(cell))
    return grid


def _digits() -> list[Target]:
    """Every method on Split Digits: minutes on a CPU, without a download, and not in the paper."""
    bounds = [Cell("offline", "digits", 0, method) for method in ("finetune", "joint")]
    hosts = [Cell("offline", "digits", 100, *pair) for pair in product(HOSTS, ("none", "ddn"))]
    others = [Cell("offline", "digits", 100, method) for method in OTHERS]
    ablations = [Cell("offline", "digits", 100, "er", plugin) for plugin in ABLATIONS]
    return [Target(cell) for cell in (*bounds, *hosts, *others, *ablations)]
