"""The ranges of a search: ``configs/tune/*.yaml``, from the name of an option to its range."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce.grid import as_option
from ddn_lightning.runs.config import read_settings

FOLDER = "tune"  # in the folder of configurations
FOR_ALL = "base"  # the file that applies to every study
DIGITS = 3  # significant digits of a proposed number
EXPECTED = "{low: 0.01, high: 0.1} with low below high, where log: true needs a low above 0, or {choices: [1, 2]}"
Value = bool | int | float | str | None


@dataclass(frozen=True)
class Range:
    """The values that a search may give to one option.

    Args:
        option: Option of ``ddn fit`` without dashes, such as ``model.lr``.
        low: Smallest number.
        high: Largest number. Where both are integers, the values are.
        log: Whether the logarithm is searched evenly.
        choices: The values, instead of numbers between ``low`` and ``high``.

    >>> Range("model.lr", 0.01, 0.1, log=True).rounded(0.012345)
    0.0123
    """

    option: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Value, ...] = ()

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def rounded(self, value: Value) -> Value:
        """A proposed value with few digits, still within the range."""
        if self.choices or self.is_integer or not isinstance(value, float):
            return value
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def as_plain(self) -> dict[str, Any]:
        """As in the YAML file."""
        if self.choices:
            return {"choices": list(self.choices)}
        return {"low": self.low, "high": self.high, **({"log": True} if self.log else {})}


def ranges_of(configs: Path, method: str, plugin: str) -> tuple[Range, ...]:
    """The ranges for a method with a plug-in: of every study, of the method, then of the plug-in.

    Those of a user's class are in the current folder, in a file with the name of its import path.

    Raises:
        ConfigurationError: If there are none, or if a file is wrong.
    """
    folders = {name: Path() if "." in name else configs / FOLDER for name in (FOR_ALL, method, plugin)}
    paths = [folder / f"{name}.yaml" for name, folder in folders.items()]
    found = [path for path in paths if path.is_file()]
    ranges = {one.option: one for path in found for one in read_ranges(path)}
    if not ranges:
        raise ConfigurationError(f"expected ranges for {method} in {' or '.join(map(str, paths[:2]))}, got no file")
    return tuple(ranges.values())


def read_ranges(path: Path) -> list[Range]:
    """The ranges in a file."""
    return [_range(str(option), plain, f"{path}: {option}") for option, plain in read_settings(path).items()]


def as_options(values: Mapping[str, Value]) -> list[str]:
    """Arguments of ``ddn fit``."""
    return [word for option, value in values.items() for word in (f"--{option}", as_option(value))]


def _range(option: str, plain: object, place: str) -> Range:
    match plain:
        case {"choices": [_, _, *_] as choices, **others} if not others and all(map(_is_value, choices)):
            return Range(option, choices=tuple(choices))
        case {"low": low, "high": high, **others} if others.keys() <= {"log"} and _is_number(low) and _is_number(high):
            log = others.get("log", False)
            if low < high and isinstance(log, bool) and (low > 0 or not log):
                return Range(option, low, high, log)
    raise ConfigurationError(f"{place} must be {EXPECTED}, got {plain}")


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | float | str | None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
