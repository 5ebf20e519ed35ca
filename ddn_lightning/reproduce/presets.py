"""``configs/tuned.csv``, and the file that ``ddn tune`` writes: the options that a preset sets for each cell."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce.grid import NONE, Cell

FILE_NAME = "tuned.csv"
PATTERN = ["preset", "setting", "data", "buffer", "method", "plugin"]
COLUMNS = [*PATTERN, "overrides", "source"]
AXES = ("setting", "data", "method", "plugin")


@dataclass(frozen=True)
class PresetRow:
    """One row.

    Args:
        pattern: The preset, setting, data, buffer, method and plugin it applies to; absent ones match any cell.
        overrides: Options of ``ddn fit`` and their values.
        source: Where the values come from.
    """

    pattern: Mapping[str, str]
    overrides: Mapping[str, str]
    source: str = ""

    def matches(self, preset: str, cell: Cell) -> bool:
        """Whether the row applies to this cell."""
        values = {**vars(cell), "preset": preset, "buffer": str(cell.buffer_size)}
        return all(values[name] == value for name, value in self.pattern.items())


def read_presets(configs: Path, preset: str = "") -> list[PresetRow]:
    """The rows of the file in a folder of configurations.

    Args:
        configs: The folder.
        preset: If it is the path of a CSV file, as ``ddn tune`` writes it, its rows come last, and belong to the preset
            of that name.
    """
    path = configs / FILE_NAME
    if not path.is_file():
        raise ConfigurationError(
            f"configs must be a folder with a {FILE_NAME} and the files of each axis, got {configs}"
        )
    rows = _read_file(path, configs)
    if not is_file(preset):
        return rows
    if not Path(preset).is_file():
        raise ConfigurationError(f"preset must be a name in {path} or an existing file, got {preset}")
    own = _read_file(Path(preset), configs)
    return [*rows, *(replace(row, pattern={**row.pattern, "preset": preset}) for row in own)]


def is_file(preset: str) -> bool:
    """Whether a preset is the path of a file instead of a name.

    >>> is_file("paper"), is_file("runs/tune/tuned.csv")
    (False, True)
    """
    return Path(preset).suffix == ".csv"


def check_covered(rows: Sequence[PresetRow], preset: str, cells: Sequence[Cell]) -> None:
    """Raise if the file that a preset names has no row for a cell, which would then run with defaults."""
    for cell in cells if is_file(preset) else ():
        if not any(row.pattern.get("preset") == preset and row.matches(preset, cell) for row in rows):
            raise ConfigurationError(
                f"{preset} must have a row for each cell, got none for {cell.setting} {cell.data} {cell.buffer_size} "
                f"{cell.method} {cell.plugin}: select the cells that were tuned"
            )


def _read_file(path: Path, configs: Path) -> list[PresetRow]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} must be UTF-8 text: {error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if reader.fieldnames != COLUMNS:
        raise ConfigurationError(f"{path} must have the columns {','.join(COLUMNS)}, got {reader.fieldnames}")
    return [_read(row, configs, f"{path}, line {reader.line_num}") for row in reader]


def overrides_for(rows: Sequence[PresetRow], preset: str, cell: Cell) -> dict[str, str]:
    """The options of all matching rows; lower rows override upper ones."""
    return {option: value for row in rows if row.matches(preset, cell) for option, value in row.overrides.items()}


def _read(row: dict[str, str], configs: Path, place: str) -> PresetRow:
    if None in row or None in row.values():
        raise ConfigurationError(f"{place}: expected {len(COLUMNS)} columns, got {list(row.values())}")
    for axis in AXES:
        name = row[axis]
        is_known = name in ("", NONE) or "." in name or (configs / axis / f"{name}.yaml").is_file()
        if not is_known:  # a class, and another file, have a dot
            raise ConfigurationError(f"{place}: {axis} must be empty or a file in {configs / axis}, got {name}")
    if row["buffer"] and not row["buffer"].isdecimal():
        raise ConfigurationError(f"{place}: buffer must be empty or a number, got {row['buffer']}")
    try:
        words = shlex.split(row["overrides"])
    except ValueError as error:
        raise ConfigurationError(
            f"{place}: overrides must be words of a shell, got {row['overrides']}: {error}"
        ) from error
    options, values = words[::2], words[1::2]
    if len(options) != len(values) or not all(option.startswith("--") for option in options):
        raise ConfigurationError(f"{place}: overrides must be pairs of --option value, got {row['overrides']}")
    pattern = {name: row[name] for name in PATTERN if row[name]}
    return PresetRow(pattern, dict(zip(options, values, strict=True)), row["source"])
