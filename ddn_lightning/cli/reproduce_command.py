"""The command ``ddn reproduce``."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import Namespace
from rich.console import Console

from ddn_lightning.callbacks.stop_signals import StopSignals
from ddn_lightning.cli.output import STANDARD_OUTPUT, check_output, write_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.cli.report_command import REFERENCE
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.reference import read_references
from ddn_lightning.reproduce.cost import cost_table, measured_hours, recorded_hours
from ddn_lightning.reproduce.data_check import check_data
from ddn_lightning.reproduce.executor import Executor, ProcessExecutor
from ddn_lightning.reproduce.grid import SELECTORS, read_grid, select
from ddn_lightning.reproduce.plan import Options, Run, plan
from ddn_lightning.reproduce.presets import FILE_NAME, check_covered, read_presets
from ddn_lightning.reproduce.progress import BAD, PlanProgress
from ddn_lightning.reproduce.ray_executor import RayExecutor
from ddn_lightning.reproduce.table import as_csv, as_json, as_markdown, rows_of
from ddn_lightning.shipped_configs import FOLDER, shipped_folder

FORMATS = {"markdown": as_markdown, "csv": as_csv, "json": as_json}
SOME_FAILED = 1  # exit code
SUFFIXES = {".csv": "csv", ".json": "json"}
DESCRIPTION = """Run a grid of settings and seeds, each run in its own process, and print mean ± std (n). The plan is a
YAML file, or the name of a shipped one: digits, collection, collection_images, or a table of the DDN paper (table1 to
table4, per_task, alpha_beta). The same command continues after a stop: it skips finished runs and resumes killed ones.
Runs that diverged are listed and excluded from the means. Arguments after -- are passed to every run:
ddn reproduce digits -- --trainer.limit_train_batches=2"""


def reproduce(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 1 if a run failed or diverged, 128 plus the signal if interrupted."""
    own, extra = split_arguments(arguments)
    settings = _parser().parse_args(own)
    grid = read_grid(settings.plan, configs_of(settings))
    cells = select(grid.cells, {name: settings[name] or () for name in SELECTORS})
    settings.preset = settings.preset or grid.preset
    options = options_of(settings, extra)
    rows = read_presets(options.configs, options.preset)
    check_covered(rows, options.preset, cells)
    runs = plan(cells, settings.seeds or grid.seeds, rows, options)
    references = [] if settings.reference is None else read_references(Path(settings.reference))
    if settings.dry_run:
        return _show_cost(runs, executor_of(settings) if settings.measure else None)
    _check_places(options.runs, settings.output)
    check_data(runs)
    code = _execute(runs, executor_of(settings))
    if code > SOME_FAILED:
        print("the same command resumes from here", file=sys.stderr)
        return code
    form = _format(settings)
    table = FORMATS[form](rows_of(runs, references))
    if form == "markdown":  # the table states its source
        table = f"`ddn reproduce {shlex.join(arguments)}`\n\n{table}"
    write_output(settings.output or STANDARD_OUTPUT, table)
    return code


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of this command, and those after ``--``, for every run."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn reproduce", description=DESCRIPTION)
    parser.add_argument("plan", type=str, help="A plan in YAML, or the name of a shipped one, such as digits.")
    several: dict[str, tuple[type, str]] = {
        "methods": (str, "Only these methods, such as er derpp."),
        "datasets": (str, "Only these datasets."),
        "buffers": (int, "Only these buffer sizes."),
        "plugins": (str, "Only these plug-ins; none is the method alone."),
        "seeds": (int, "A run each. Default: those of the plan."),
    }
    for name, (kind, text) in several.items():
        parser.add_argument(f"--{name}", type=kind, nargs="+", help=text)
    text = "Rows of configs/tuned.csv: paper, tuned or default; or a tuned.csv of ddn tune. Default: that of the plan."
    parser.add_argument("--preset", type=str | None, default=None, help=text)
    parser.add_argument("--reference", type=str | None, default=None, help=REFERENCE)
    add_run_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="Only print what there is to run, and what it costs.")
    text = "With --dry-run: time a few batches of each cell, training only. Default: the times of finished runs."
    parser.add_argument("--measure", action="store_true", help=text)
    parser.add_argument("--format", type=Literal[tuple(FORMATS)] | None, default=None, help="Format of the result.")
    parser.add_argument("-o", "--output", type=str | None, default=None, help="File for the result; - prints it.")
    return parser


def add_run_options(parser: CommandParser) -> None:
    """Add the options of all runs and of their execution."""
    parser.add_argument("--width", type=int | None, default=None, help="Width of the backbone; the paper's is 64.")
    parser.add_argument(
        "--configs",
        type=str | None,
        default=None,
        help="Folder with the configuration files. Default: configs/ if it has a tuned.csv, else those of the package.",
    )
    parser.add_argument("--runs", type=str, default="runs", help="Parent folder of all run folders.")
    parser.add_argument("--data", type=str | None, default=None, help="Folder with the datasets, instead of data/.")
    parser.add_argument("--jobs", type=int | None, default=None, help="Parallel runs. Default: one per GPU, or one.")
    parser.add_argument("--executor", type=Literal["processes", "ray"], default="processes", help="Executor of runs.")
    parser.add_argument("--address", type=str | None, default=None, help="Ray cluster. Default: start a local one.")


def options_of(settings: Namespace, extra: Sequence[str]) -> Options:
    """The options of all runs, from those of :func:`add_run_options` and ``--preset``."""
    return Options(
        configs=configs_of(settings),
        runs=Path(settings.runs),
        preset=settings.preset,
        data=None if settings.data is None else Path(settings.data),
        width=settings.width,
        extra=extra,
    )


def configs_of(settings: Namespace) -> Path:
    """The folder with the configuration files."""
    if settings.configs is not None:
        return Path(settings.configs)
    return Path(FOLDER) if (Path(FOLDER) / FILE_NAME).is_file() else shipped_folder()


def _check_places(runs: Path, output: str | None) -> None:
    """Check before the runs that everything can be written."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"runs must be a folder that can be created, got {runs}: {error}") from error
    check_output(output or STANDARD_OUTPUT)


def executor_of(settings: Namespace) -> Executor:
    """The executor that the options of :func:`add_run_options` ask for."""
    if settings.executor == "ray":
        return RayExecutor(settings.jobs, settings.address)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    devices = devices[: torch.cuda.device_count()]
    return ProcessExecutor(max(1, len(devices)) if settings.jobs is None else settings.jobs, devices)


def _show_cost(runs: Sequence[Run], executor: Executor | None) -> int:
    """Print the table of a dry run, measured if there is an ``executor``; never wider than the terminal."""
    hours = recorded_hours(runs)
    if executor is not None:
        hours = measured_hours(runs, lambda short: executor.execute(short, lambda: False)) | hours
    console = Console()
    with console.capture() as table:  # rich ends the process itself when a pipe is closed
        console.print(cost_table(runs, hours))
    print(table.get(), end="")
    if not hours:
        print("CPU hours are unknown: add --measure to time a few batches of each row", file=sys.stderr)
    return 0


def _execute(runs: Sequence[Run], executor: Executor) -> int:
    """Execute all runs; returns the exit code."""
    stop = StopSignals()
    stop.listen()
    try:
        with PlanProgress(runs, executor.jobs) as progress:
            for event in executor.execute(runs, lambda: bool(stop.received)):
                progress.show(event)
    finally:
        stop.stop_listening()
    print(progress.summary(), file=sys.stderr)
    if stop.received:
        return 128 + stop.received
    return SOME_FAILED if any(event.state in BAD for event in progress.events.values()) else 0


def _format(settings: Namespace) -> str:
    """The given format, else that of the output file's suffix, else Markdown."""
    suffix = "" if settings.output is None else Path(settings.output).suffix
    return str(settings.format or SUFFIXES.get(suffix, "markdown"))
