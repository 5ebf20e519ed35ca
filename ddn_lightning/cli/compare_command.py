"""The command ``ddn compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ddn_lightning.cli.output import check_output, write_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.cli.report_command import read_runs
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.notes import note
from ddn_lightning.report.group_comparison import WORTH_FINDING, as_csv, as_latex, as_markdown, compare_groups
from ddn_lightning.report.seed_group import STATISTICS, Budget

DESCRIPTION = """Compare groups of runs: differences to a baseline, paired by seed, with 95 % confidence intervals, the
seeds that they need, and processor time. Runs that differ only in their seed form one row. A folder of runs means all
runs in it: ddn compare runs --baseline er -o table.md --figure cost.png"""
CHOSEN_ON_SEEDS = "--chosen_on_seeds"
FORMATS = {"markdown": as_markdown, "csv": as_csv, "latex": as_latex}
FIGURE_FORMATS = (".png", ".svg")


def compare(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if any(word.partition("=")[0] == CHOSEN_ON_SEEDS for word in arguments):
        how = f"ddn fit {CHOSEN_ON_SEEDS} '[0, 1]'"
        raise ConfigurationError(f"{CHOSEN_ON_SEEDS} must be left out of a comparison: its runs know them by {how}")
    settings = _parser().parse_args(list(arguments))
    check_output(settings.output)
    if settings.figure is not None:
        check_output(settings.figure)
        if Path(settings.figure).suffix.lower() not in FIGURE_FORMATS:
            raise ConfigurationError(f"figure must be a file that ends in .png or .svg, got {settings.figure}")
    statistics = STATISTICS if settings.statistics == "both" else (settings.statistics,)
    check_positive(difference=settings.difference)
    runs = read_runs([Path(run) for run in settings.runs])
    comparison = compare_groups(runs, settings.baseline, statistics, settings.difference, settings.by)
    if not comparison.rows:
        reasons = "; ".join(comparison.left_out) or "none has them recorded"
        raise ConfigurationError(f"run must be finished and have {settings.statistics} statistics, but {reasons}")
    if settings.figure is not None:
        from ddn_lightning.report.figures import pareto_figure, save_as  # here: importing Matplotlib is slow

        save_as(pareto_figure(comparison.rows), Path(settings.figure).resolve())  # a link is followed
    write_output(settings.output, FORMATS[settings.format](comparison))
    if settings.format != "markdown":  # Markdown lists them itself
        for line in (*comparison.warnings, *(f"left out {line}" for line in comparison.left_out)):
            note(line)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn compare", description=DESCRIPTION)
    parser.add_argument("runs", type=str, nargs="+", metavar="RUN", help="A run folder, or a folder of run folders.")
    parser.add_argument(
        "--baseline",
        type=str,
        help="Baseline: a method such as er or 'ER + DDN', or the name of a run, with all its seeds. Default: for each "
        "method the same method without plug-in or control, with default options.",
    )
    parser.add_argument(
        "--statistics",
        type=Literal["running", "calibrated", "both"],
        default="both",
        help="BatchNorm statistics of the evaluation; runs without them are left out.",
    )
    parser.add_argument(
        "--difference",
        type=float,
        default=WORTH_FINDING,
        help="Difference in ACC worth finding, in points: the table says how many seeds it needs.",
    )
    parser.add_argument(
        "--by",
        type=Budget,
        default="samples",
        help="What runs must have equally much of to be compared: samples in memory, or bytes of all that is kept, "
        "those of --model.buffer_bytes if it was given.",
    )
    parser.add_argument("--format", type=Literal["markdown", "csv", "latex"], default="markdown", help="Table format.")
    parser.add_argument("-o", "--output", type=str, default="-", help="File for the table; - prints it.")
    parser.add_argument("--figure", type=str, help="PNG or SVG file: ACC and FM over cost, with the Pareto front.")
    return parser
