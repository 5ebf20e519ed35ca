"""The table of all methods: one line for each, alone and with each plug-in, by both kinds of BatchNorm statistics."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ddn_lightning.names import title_of
from ddn_lightning.report.paper_comparison import status_of
from ddn_lightning.report.statistic import Estimate, estimate
from ddn_lightning.report.tables import NOTHING, csv_table, markdown_table, rounded
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.results import RunResult

ARMS = {"none": "alone", "hard": "+ hard draw", "ddn": "+ DDN"}  # by plug-in
STATISTICS = ("", "calibrated_")  # running and calibrated, as prefixes of measures
MEASURES = tuple(f"{prefix}{name}" for prefix in STATISTICS for name in ("acc", "fm"))


@dataclass(frozen=True)
class Entry:
    """A method alone or with a plug-in.

    Args:
        cell: The cell.
        status: Which runs are missing; empty if none.
        n: Number of runs with results.
        measures: The mean of each of :data:`MEASURES`, ``None`` where nothing was measured.
    """

    cell: Cell
    status: str
    n: int
    measures: Mapping[str, Estimate | None]


def collect(
    cells: Sequence[Cell],
    results: Mapping[Cell, Sequence[RunResult | None]],
    diverged: Mapping[Cell, int] = MappingProxyType({}),
) -> list[Entry]:
    """The entries of the table.

    Args:
        cells: The cells.
        results: Results of the planned runs of each cell, ``None`` for runs without one. A cell without an entry
            belongs to a method that is not available.
        diverged: Number of diverged runs of each cell.
    """
    entries = []
    for cell in cells:
        planned = results.get(cell)
        done = [result for result in planned or () if result is not None]
        measures = {name: estimate(getattr(result, name) for result in done) for name in MEASURES}
        entries.append(Entry(cell, status_of(planned, diverged.get(cell, 0)), len(done), measures))
    return entries


def as_markdown(entries: Sequence[Entry]) -> str:
    """A line for each method: ACC / FM (n), alone and with each plug-in, then the same with calibrated statistics."""
    plugins = [plugin for plugin in ARMS if any(entry.cell.plugin == plugin for entry in entries)]
    names = [name for plugin in plugins for name in (ARMS[plugin], f"{ARMS[plugin]}, calibrated")]
    header = ["setting", "data", "buffer", "method", *(f"{name}: ACC ↑ / FM ↓" for name in names)]
    methods: dict[tuple[str, ...], dict[str, Entry]] = {}
    for entry in entries:
        cell = entry.cell
        line = (cell.setting, cell.data, str(cell.buffer_size), title_of(cell.method))
        methods.setdefault(line, {})[cell.plugin] = entry
    lines = [
        [*line, *(text for plugin in plugins for text in _pair(found.get(plugin)))] for line, found in methods.items()
    ]
    return markdown_table(header, lines, numbers_from=4)


def as_csv(entries: Sequence[Entry]) -> str:
    """One line per method and plug-in; empty where there is no number."""
    return csv_table([_record(entry) for entry in entries])


def as_json(entries: Sequence[Entry]) -> str:
    """One object per method and plug-in; ``null`` where there is no number."""
    return json.dumps([_record(entry) for entry in entries], indent=2) + "\n"


def _pair(entry: Entry | None) -> list[str]:
    """An entry with running and with calibrated statistics."""
    if entry is None:
        return [NOTHING, NOTHING]
    running, calibrated = (_both(entry.measures[f"{name}acc"], entry.measures[f"{name}fm"]) for name in STATISTICS)
    if entry.status:
        running = entry.status if entry.n == 0 else f"{running}, {entry.status}"
    return [running, calibrated]


def _both(acc: Estimate | None, fm: Estimate | None) -> str:
    if acc is None:
        return NOTHING
    return f"{acc.mean_std} / {NOTHING if fm is None else fm.mean_std} ({acc.n})"


def _record(entry: Entry) -> dict[str, str | float | None]:
    record: dict[str, str | float | None] = {**vars(entry.cell), "status": entry.status, "n": entry.n}
    for name, found in entry.measures.items():
        record[name] = rounded(getattr(found, "mean", None))
        record[f"{name}_std"] = rounded(getattr(found, "std", None))
    return record
