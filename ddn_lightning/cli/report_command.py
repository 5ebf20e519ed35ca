"""The command ``ddn report``."""

import os
import shlex
import sys
import webbrowser
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddn_lightning.cli.output import STANDARD_OUTPUT, check_output, write_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.errors import ConfigurationError, note
from ddn_lightning.report.reference import read_references
from ddn_lightning.runs.recorded_run import CONFIG_FILE, RecordedRun, read_run
from ddn_lightning.runs.results import RESULTS_FILE

REFERENCE = "Published results in CSV to show beside ours: method,plugin,data,buffer_size,acc,fm,source."
DESCRIPTION = """Make a self-contained HTML page of runs: results, figures, differences between the configurations, and
the command that repeats each run. A folder of runs means all runs in it: ddn report runs -o page.html --open"""


def report(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    output: str = settings.output
    check_output(output)
    is_printed = output == STANDARD_OUTPUT
    if settings.open and is_printed:
        raise ConfigurationError(f"output must be a file for --open, got {output}")
    runs = read_runs([Path(run) for run in settings.runs])
    references = [] if settings.reference is None else read_references(Path(settings.reference))
    from ddn_lightning.report.page import page  # here: importing Matplotlib is slow

    write_output(output, page(runs, shlex.join(["ddn", "report", *arguments]), references))
    counted = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print(f"{counted} in {output}", file=sys.stderr if is_printed else None)
    if settings.open and not webbrowser.open(Path(output).resolve().as_uri()):
        note(f"no browser could be started, open {output} yourself")
    return 0


def read_runs(paths: Sequence[Path]) -> list[RecordedRun]:
    """The runs in these folders, with unique names; a folder that is not a run means all runs below it.

    Raises:
        ConfigurationError: If a folder does not exist, or if there are no runs.
    """
    found: dict[Path, Path] = {}  # by resolved path, to read no run twice
    for path in paths:
        if not path.exists():
            raise ConfigurationError(f"run must be the folder of a run, or of several, but there is no {path}")
        found |= {folder.resolve(): folder for folder in _runs_in(path)}
    folders = found.values()
    if not any(map(_is_run, folders)):
        places = ", ".join(map(str, paths))
        raise ConfigurationError(f"run must be a folder that ddn fit has made, or hold such folders, got {places}")
    runs = [read_run(folder) for folder in folders]
    counts = Counter(run.name for run in runs)
    return [replace(run, name=str(run.folder)) if counts[run.name] > 1 else run for run in runs]


def _runs_in(path: Path) -> list[Path]:
    if not path.is_dir() or _is_run(path):
        return [path]
    found, entered = [], set[str]()
    for folder, below, _ in os.walk(path, followlinks=True):
        if os.path.realpath(folder) in entered:  # a link to a folder above
            below.clear()
        elif _is_run(Path(folder)):
            found.append(Path(folder))
        entered.add(os.path.realpath(folder))
    return sorted(found) or [path]


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG_FILE, RESULTS_FILE))


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn report", description=DESCRIPTION)
    parser.add_argument("runs", type=str, nargs="+", metavar="RUN", help="A run folder, or a folder of run folders.")
    parser.add_argument("-o", "--output", type=str, default="report.html", help="File for the page; - prints it.")
    parser.add_argument("--reference", type=str | None, default=None, help=REFERENCE)
    parser.add_argument("--open", action="store_true", help="Open the page in a browser.")
    return parser
