"""A grid of settings and seeds, read from a plan: a name in ``configs/plan`` or a YAML file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ddn_lightning.errors import ConfigurationError, did_you_mean
from ddn_lightning.reproduce.shipped_configs import PLANS, SUFFIX
from ddn_lightning.runs.config import read_settings

NONE = "none"  # plug-in
AXES = ("setting", "data", "buffer_size", "network", "method", "memory", "plugin")  # the first varies slowest
REQUIRED = ("setting", "data", "method")
BLOCK_KEYS = (*AXES, "options", "configs")
PLAN_KEYS = ("preset", "seeds", "cells")
SELECTORS = {"methods": "method", "datasets": "data", "buffers": "buffer_size", "plugins": "plugin"}  # fields of a cell


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a method in a setting.

    Each part is the name of a file in the part's folder of ``configs/``, the path of another YAML file, or the import
    path of a class.

    Args:
        setting: Setting, such as ``online``.
        data: Dataset.
        buffer_size: Samples that the memory holds; 0 for a method without memory.
        method: Method.
        plugin: Plug-in, or ``none``.
        options: Options of ``ddn fit`` that distinguish cells, with their values.
        network: Network; empty for that of the dataset's file.
        memory: Import path of the memory's class; empty for the method's own.
        configs: Further configuration files.
    """

    setting: str
    data: str
    buffer_size: int
    method: str
    plugin: str = NONE
    options: tuple[tuple[str, str], ...] = ()
    network: str = ""
    memory: str = ""
    configs: tuple[str, ...] = ()

    @property
    def variant(self) -> str:
        """The options in short, such as ``alpha=0.5 beta=0.9``."""
        return " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in self.options)


@dataclass(frozen=True)
class Grid:
    """The cells of a plan, their seeds, and the preset of ``tuned.csv`` that they take their options from."""

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    preset: str = "default"


def read_grid(name: str, configs: Path) -> Grid:
    """The grid of a plan.

    Args:
        name: Path of a YAML file, or the name of a plan in the folder of configurations.
        configs: That folder.

    Raises:
        ConfigurationError: If there is no such plan, or if it is wrong.
    """
    path = Path(name) if name.endswith(SUFFIX) or Path(name).is_file() else configs / f"{PLANS}{name}{SUFFIX}"
    if not path.is_file():
        names = sorted(found.stem for found in (configs / PLANS).glob(f"*{SUFFIX}"))
        known = f"plan must be a YAML file or one of {', '.join(names)}, got {name}"
        raise ConfigurationError(f"{known}{did_you_mean(name, names)}")
    plain = read_settings(path)
    _check_keys(plain, PLAN_KEYS, ("cells",), str(path))
    blocks, seeds = plain["cells"], plain.get("seeds", [1])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise ConfigurationError(f"{path}: cells must be a list of mappings such as {{setting: online}}, got {blocks}")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise ConfigurationError(f"{path}: seeds must be a list of integers, got {seeds}")
    cells = [cell for number, block in enumerate(blocks) for cell in _cells(block, f"{path}: cells[{number}]")]
    return Grid(tuple(dict.fromkeys(cells)), tuple(seeds), str(plain.get("preset", Grid.preset)))


def select(cells: Sequence[Cell], wanted: Mapping[str, Sequence[str | int]]) -> list[Cell]:
    """The cells that have the wanted values.

    Args:
        cells: The cells.
        wanted: Values by the keys of :data:`SELECTORS`; an empty sequence selects all.

    Raises:
        ConfigurationError: If no cell has a wanted value, or if no cell is left.
    """
    selected = list(cells)
    for name, values in wanted.items():
        choices = dict.fromkeys(getattr(cell, SELECTORS[name]) for cell in cells)
        for value in values:
            if value not in choices:
                raise ConfigurationError(f"{name} must be among {', '.join(map(str, choices))}, got {value}")
        selected = [cell for cell in selected if not values or getattr(cell, SELECTORS[name]) in values]
    if not selected:
        raise ConfigurationError(f"the selection must leave at least one cell of the plan, got {dict(wanted)}")
    return selected


def _cells(block: Mapping[str, Any], place: str) -> Iterator[Cell]:
    """The product of a block's axes; a list is a value for each of its entries."""
    _check_keys(block, BLOCK_KEYS, REQUIRED, place)
    options, configs = block.get("options") or {}, tuple(map(str, _listed(block.get("configs", []))))
    if not isinstance(options, dict):
        raise ConfigurationError(f"{place}: options must map options of ddn fit to values, got {options}")
    parts = {name: _listed(block[name]) for name in AXES if name in block}
    sizes = parts.get("buffer_size", [0])
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ConfigurationError(f"{place}: buffer_size must be an integer of at least 0, got {sizes}")
    for values in product(*parts.values(), *map(_listed, options.values())):
        axes: dict[str, Any] = {"buffer_size": 0}
        axes |= {name: v if name == "buffer_size" else str(v) for name, v in zip(parts, values, strict=False)}
        given = tuple(zip(options, map(as_option, values[len(parts) :]), strict=True))
        yield Cell(**axes, options=given, configs=configs)


def as_option(value: object) -> str:
    """A value as it is written on the command line.

    >>> as_option(0.01), as_option(True), as_option("separate"), as_option(None)
    ('0.01', 'true', 'separate', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value)


def _check_keys(found: Mapping[str, Any], known: Sequence[str], required: Sequence[str], place: str) -> None:
    for name in found:
        if name not in known:
            similar = did_you_mean(str(name), known)
            raise ConfigurationError(f"{place}: expected the keys {', '.join(known)}, got {name}{similar}")
    for name in required:
        if found.get(name) in (None, []):
            raise ConfigurationError(f"{place} must have a value of {name}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
