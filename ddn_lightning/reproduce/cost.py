"""What the runs of a plan cost in processor time on this machine."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.table import Table

from ddn_lightning.report.tables import NOTHING
from ddn_lightning.reproduce.executor import Event
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Run, data_options, short_name
from ddn_lightning.runs.config import flat, read_settings
from ddn_lightning.runs.recorded_run import CONFIG_FILE
from ddn_lightning.runs.results import Results, read_result

EPOCHS, BATCH_SIZE = "--data.epochs_per_task", "data.init_args.batch_size"
BATCHES = (2, 8)  # measured in each task: their difference is free of what is done once
MINUTES = 60.0


def recorded_hours(runs: Sequence[Run]) -> dict[Cell, float]:
    """The mean processor hours of a cell's finished runs."""
    minutes: dict[Cell, list[float]] = {}
    for run in runs:
        result = read_result(run.folder)
        if result is not None and result.cpu_minutes is not None:
            minutes.setdefault(run.cell, []).append(result.cpu_minutes)
    return {cell: fmean(values) / MINUTES for cell, values in minutes.items()}


def measured_hours(runs: Sequence[Run], execute: Callable[[Sequence[Run]], Iterable[Event]]) -> dict[Cell, float]:
    """The processor hours of a run of each cell, from a few batches of each task; evaluation is not included.

    Args:
        runs: The planned runs; one of each cell is measured. Cells whose short runs fail are left out.
        execute: Executes runs.
    """
    whole = {run.cell: run for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        short = {cell: [_short(run, number, Path(folder)) for number in BATCHES] for cell, run in whole.items()}
        for _ in execute([run for pair in short.values() for run in pair]):
            pass
        hours = {cell: _hours(whole[cell], *pair) for cell, pair in short.items()}
    return {cell: value for cell, value in hours.items() if value is not None}


def cost_table(runs: Sequence[Run], hours: Mapping[Cell, float]) -> Table:
    """A row for each cell: processor hours of the runs that are left, and how many are planned and done.

    Args:
        runs: The planned runs.
        hours: Processor hours of a run of each cell, as far as known.
    """
    table = Table("CPU h", "runs", "done", "setting", "data", "buffer", "method", "plug-in", show_footer=True)
    left_hours, is_known = 0.0, bool(hours)
    cells = dict.fromkeys(run.cell for run in runs)
    for cell in cells:
        own = [run for run in runs if run.cell == cell]
        done = sum(read_result(run.folder) is not None for run in own)
        cost = hours.get(cell)
        left_hours += (cost or 0.0) * (len(own) - done)
        is_known = is_known and (cost is not None or done == len(own))
        parts = [cell.setting, cell.data, str(cell.buffer_size), cell.method, cell.plugin]
        plugin = f"{short_name(parts[-1])} {cell.variant}".strip()
        numbers = [NOTHING if cost is None else f"{cost * (len(own) - done):.2g}", str(len(own)), str(done)]
        table.add_row(*numbers, *map(short_name, parts[:-1]), plugin)
    done = sum(read_result(run.folder) is not None for run in runs)
    total = (f"{left_hours:.2g}" if is_known else NOTHING, len(runs), done)
    for column, text in zip(table.columns, total, strict=False):
        column.footer, column.justify = str(text), "right"
    return table


def _short(run: Run, batches: int, folder: Path) -> Run:
    options = {EPOCHS: "1", "--trainer.limit_train_batches": str(batches), "--trainer.limit_val_batches": "0"}
    arguments = (*run.arguments, *(word for pair in options.items() for word in pair))
    return replace(run, arguments=arguments, folder=folder / f"{run.folder.name}-{batches}")


def _hours(whole: Run, few: Run, many: Run) -> float | None:
    """Processor time of all batches of a run by that of a few; ``None`` if a short run has no result."""
    found = [read_result(run.folder) for run in (few, many)]
    minutes = [result.cpu_minutes for result in found if result is not None and result.cpu_minutes is not None]
    if len(minutes) < len(found):
        return None
    (_, result) = found
    assert result is not None
    measured = [batches * len(result.matrix) for batches in BATCHES]
    per_batch = max(0.0, minutes[1] - minutes[0]) / (measured[1] - measured[0])
    return (minutes[0] + per_batch * max(0.0, _batches_of(whole, many, result) - measured[0])) / MINUTES


def _batches_of(whole: Run, short: Run, result: Results) -> float:
    """How many batches a run trains on, all epochs of all tasks together."""
    options = data_options(whole)
    epochs = dict(zip(options[::2], options[1::2], strict=True)).get(EPOCHS, "1")
    batch_size = flat(read_settings(short.folder / CONFIG_FILE))[BATCH_SIZE]
    return float(epochs) * result.num_images["train"] / float(batch_size)
