"""Published results beside which runs are shown, from a CSV file of the user."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.names import method_key, plugin_key
from ddn_lightning.runs.config import load_yaml
from ddn_lightning.runs.files import read_regular
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

COLUMNS = ("method", "plugin", "data", "buffer_size", "acc", "fm", "source")
ALTERNATIVES = "|"  # between values of a setting


@dataclass(frozen=True)
class Reference:
    """A published result, in percent.

    Args:
        acc: Average accuracy, if published.
        fm: Forgetting, if published.
        source: Who has published it.
        facts: Method, plug-in, data and memory of the runs that it is comparable with; empty values are not compared.
        settings: Settings of these runs by dotted key, such as ``model.backbone.width``.
    """

    acc: float | None
    fm: float | None
    source: str
    facts: Mapping[str, str]
    settings: Mapping[str, str]

    def matches(self, run: RecordedRun) -> bool:
        """Whether a run has this method, data and memory, and all these settings."""
        if run.results is None or not all(_is_named(value, self.facts[name]) for name, value in _facts(run.results)):
            return False
        found = {key.replace(".init_args", ""): value for key, value in run.config.items()}
        return all(_has_value(found.get(key), text) for key, text in self.settings.items())


def read_references(path: Path) -> list[Reference]:
    """The rows of a CSV file with the columns ``method,plugin,data,buffer_size,acc,fm,source``.

    Method and plug-in are a class or its key (``DERPlusPlus`` or ``derpp``; ``none`` for no plug-in). Any other column
    is the dotted name of a setting, such as ``model.backbone.width``, with the value that a run must have, or several
    values separated by ``|``. An empty field is not compared.

    Raises:
        ConfigurationError: If the file cannot be read, or if a row is wrong.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_regular(path).decode(), newline=""))
        rows = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"reference must be a CSV file in UTF-8, got {path}: {error}") from error
    if not set(COLUMNS) <= set(reader.fieldnames or ()):
        raise ConfigurationError(f"{path} must have the columns {','.join(COLUMNS)}, got {reader.fieldnames}")
    return [_reference(row, f"{path}, line {number}") for number, row in rows]


def reference_of(run: RecordedRun, references: Sequence[Reference]) -> Reference | None:
    """The first reference that a run is comparable with."""
    return next((one for one in references if one.matches(run)), None)


def _reference(row: Mapping[str | None, Any], place: str) -> Reference:
    if None in row or None in row.values():
        raise ConfigurationError(f"{place}: expected a value for each column, got {list(row.values())}")
    texts = {str(name): str(value).strip() for name, value in row.items()}
    settings = {name: text for name, text in texts.items() if name not in COLUMNS and text}
    acc, fm = (_number(name, texts[name], place) for name in ("acc", "fm"))
    return Reference(acc, fm, texts["source"], {name: texts[name] for name in COLUMNS[:4]}, settings)


def _number(name: str, text: str, place: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigurationError(f"{place}: {name} must be a number in percent, got {text}") from None


def _facts(results: Results) -> list[tuple[str, tuple[str, ...]]]:
    """The names that a run's method, plug-in, data and memory go by."""
    return [
        ("method", (results.method, method_key(results.method))),
        ("plugin", (results.plugin or "none", plugin_key(results.plugin))),
        ("data", (results.dataset,)),
        ("buffer_size", (str(results.buffer_size),)),
    ]


def _is_named(names: Sequence[str], text: str) -> bool:
    return not text or text in names


def _has_value(found: object, text: str) -> bool:
    """Whether a setting has one of the values; the import path of a class may be shortened to its name."""
    values = [load_yaml(one) for one in text.split(ALTERNATIVES)]
    short = found.rpartition(".")[2] if isinstance(found, str) else found
    return any(value in (found, short) and isinstance(value, bool) == isinstance(found, bool) for value in values)
