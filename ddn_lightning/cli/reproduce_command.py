"""The command ``ddn reproduce``."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import Namespace

from ddn_lightning.callbacks.stop_signals import StopSignals
from ddn_lightning.cli.output import STANDARD_OUTPUT, check_output, write_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report import collection_table
from ddn_lightning.report.paper import Target, why_not_the_papers
from ddn_lightning.report.paper_comparison import as_csv, as_json, as_markdown, compare_with_paper
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.reproduce.data_check import check_data
from ddn_lightning.reproduce.executor import Executor, ProcessExecutor, can_resume
from ddn_lightning.reproduce.plan import (
    COLLECTION,
    DEFAULTS,
    SELECTORS,
    TABLES,
    Defaults,
    Options,
    Run,
    plan,
    select,
    table,
)
from ddn_lightning.reproduce.presets import FILE_NAME, check_covered, read_presets
from ddn_lightning.reproduce.progress import BAD, PlanProgress
from ddn_lightning.reproduce.ray_executor import RayExecutor
from ddn_lightning.runs.recorded_run import RecordedRun, read_run
from ddn_lightning.runs.results import RESULTS_FILE, RunResult, read_divergence, read_result
from ddn_lightning.shipped_configs import FOLDER, shipped_folder

FORMATS = {"markdown": as_markdown, "csv": as_csv, "json": as_json}
COLLECTION_FORMATS = {
    "markdown": collection_table.as_markdown,
    "csv": collection_table.as_csv,
    "json": collection_table.as_json,
}
SOME_FAILED = 1  # exit code
SUFFIXES = {".csv": "csv", ".json": "json"}
DESCRIPTION = """Execute the runs of a table of the DDN paper, each in its own process, and print mean ± std (n) beside
the paper's numbers; where the runs are not in the paper's setting, such as with --width 20, the reason instead. The
same command continues after a stop: it skips finished runs and resumes killed ones. Runs that diverged are listed and
excluded from the means. The table collection has all methods on digits, or with --datasets image_folder on a folder of
images: alone, with a hard draw of old memory and with DDN, each also calibrated. Arguments after -- are
passed to every run: ddn reproduce digits -- --trainer.limit_train_batches=2"""


def reproduce(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 1 if a run failed or diverged, 128 plus the signal if interrupted."""
    own, extra = split_arguments(arguments)
    settings = _parser().parse_args(own)
    defaults = DEFAULTS.get(settings.table, Defaults())
    wanted = {name: settings[name] or getattr(defaults, name, ()) for name in SELECTORS}
    targets = select(table(settings.table), wanted)
    options = replace(options_of(settings, extra), files=defaults.files)
    rows = read_presets(options.configs, options.preset)
    check_covered(rows, options.preset, [target.cell for target in targets])
    runs = plan(targets, settings.seeds or defaults.seeds, rows, options)
    if settings.dry_run:
        for run in runs:
            print(f"ddn {shlex.join(run.command(can_resume(run.folder)))}")
        return 0
    _check_places(options.runs, settings.output)
    check_data(runs)
    code = _execute(runs, executor_of(settings))
    if code > SOME_FAILED:
        print("the same command resumes from here", file=sys.stderr)
        return code
    name = _format(settings)
    report = _report(settings.table, name, targets, runs)
    if name == "markdown":  # the table states its source
        report = f"`ddn reproduce {shlex.join(arguments)}`\n\n{report}"
    write_output(settings.output or STANDARD_OUTPUT, report)
    return code


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of this command, and those after ``--``, for every run."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn reproduce", description=DESCRIPTION)
    parser.add_argument("table", type=Literal[TABLES], help="Table to reproduce.")
    several: dict[str, tuple[type, str]] = {
        "methods": (str, "Only these methods, such as er derpp."),
        "datasets": (str, "Only these datasets. Default: all; of collection digits."),
        "buffers": (int, "Only these buffer sizes."),
        "plugins": (str, "Only these plug-ins; none is the method alone."),
        "seeds": (int, "A run each. Default: 1 to 10 online, 1 to 3 offline, as in the paper; of collection 11 to 15."),
    }
    for name, (kind, text) in several.items():
        parser.add_argument(f"--{name}", type=kind, nargs="+", help=text)
    text = "Rows of configs/tuned.csv: paper, tuned or default; or a tuned.csv that ddn tune has written."
    parser.add_argument("--preset", type=str, default="paper", help=text)
    add_run_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="Only print the runs' commands.")
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


def _report(table_name: str, form: str, targets: Sequence[Target], runs: Sequence[Run]) -> str:
    """The table of the runs' results in this format."""
    diverged = Counter(run.cell for run in runs if read_divergence(run.folder) is not None)
    if table_name == COLLECTION:
        cells = [target.cell for target in targets]
        return COLLECTION_FORMATS[form](collection_table.collect(cells, _results(runs), diverged))
    reasons = _reasons(runs, {target.cell for target in targets if target.acc is not None})
    return FORMATS[form](compare_with_paper(targets, _results(runs), diverged, reasons))


def _results(runs: Sequence[Run]) -> dict[Cell, list[RunResult | None]]:
    results: dict[Cell, list[RunResult | None]] = {}
    for run in runs:
        results.setdefault(run.cell, []).append(read_result(run.folder))
    return results


def _reasons(runs: Sequence[Run], cells: Collection[Cell]) -> dict[Cell, str]:
    """Why the runs of these cells, which differ in their seed only, are not in the paper's setting."""
    first: dict[Cell, RecordedRun] = {}
    for run in runs:
        if run.cell in cells and run.cell not in first and (run.folder / RESULTS_FILE).is_file():
            first[run.cell] = read_run(run.folder)
    found = {cell: why_not_the_papers(run, cell) for cell, run in first.items() if run.results is not None}
    return {cell: reason for cell, reason in found.items() if reason is not None}


def _format(settings: Namespace) -> str:
    """The given format, else that of the output file's suffix, else Markdown."""
    suffix = "" if settings.output is None else Path(settings.output).suffix
    return str(settings.format or SUFFIXES.get(suffix, "markdown"))
