"""Processor seconds until something happens: imports, commands of ``ddn``, the first step of a fit, and short runs.

``--before FOLDER`` measures another version of the package in the same rounds, too.
"""

import argparse
import os
import subprocess
import sys
import timeit
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Row, arguments, finish

ROOT = Path(__file__).parents[1]
LIBRARIES, DDN = "import torch, lightning", ["-m", "ddn_lightning"]
NO_EXIT = "without an exit"
STARTS = {
    LIBRARIES: ["-c", LIBRARIES],
    f"{LIBRARIES}, {NO_EXIT}": ["-c", f"{LIBRARIES}; import os; os._exit(0)"],
    "ddn --version": [*DDN, "--version"],
    "ddn --help": [*DDN, "--help"],
    "ddn configs": [*DDN, "configs"],
    f"ddn fit, until the first step, {NO_EXIT}": [
        *[*DDN, "fit", "-c", "quickstart"],
        "--trainer.callbacks+=benchmarks.first_step.ExitAtFirstStep",
    ],
}
DIGITS = [*DDN, "reproduce", "digits", "--methods", "er", "--plugins", "none"]
ONE_EPOCH = ["--", "--data.epochs_per_task", "1"]


def children_seconds() -> float:
    """Processor time of all processes started from here that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def start(options: list[str], root: Path = ROOT) -> None:
    """Start Python in an empty folder, with the package in another one, and wait for its end."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        command = [sys.executable, *options]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)  # noqa: S603


def least_seconds(starts: dict[str, list[str]], roots: dict[str, Path], rounds: int) -> dict[tuple[str, str], float]:
    """The least processor time of each start with each version; all take turns."""
    seconds: dict[tuple[str, str], list[float]] = {(name, version): [] for name in starts for version in roots}
    for _ in range(rounds):
        for name, options in starts.items():
            for version, root in roots.items():
                found = timeit.timeit(partial(start, options, root), timer=children_seconds, number=1)
                seconds[name, version].append(found)
    return {key: min(times) for key, times in seconds.items()}


def rows_of(starts: dict[str, list[str]], settings: argparse.Namespace) -> list[Row]:
    """A row for each start."""
    roots = {"s": ROOT} | ({} if settings.before is None else {"before, s": settings.before.resolve()})
    least = least_seconds(starts, roots, settings.rounds)
    rows: list[Row] = []
    for name in starts:
        row: Row = {"start": f"`{name}`", **{version: least[name, version] for version in roots}}
        row |= {"to before": least[name, "s"] / least[name, "before, s"]} if settings.before is not None else {}
        row |= {"to the libraries": least[name, "s"] / least[LIBRARIES, "s"]} if LIBRARIES in starts else {}
        rows.append(row)
    return rows


def main() -> None:
    """Measure every start."""
    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, help="folder of another version of the package, to compare with")
    parser.add_argument("--runs", type=int, default=0, help="runs of one epoch a task by one ddn reproduce")
    settings = parser.parse_args()
    tables = {"Processor time, the least of all rounds": rows_of(STARTS, settings)}
    if settings.runs:
        seeds = [str(seed) for seed in range(1, settings.runs + 1)]
        runs = {f"{settings.runs} runs of ddn reproduce digits": [*DIGITS, "--seeds", *seeds, *ONE_EPOCH]}
        tables["Runs of one epoch a task"] = rows_of(runs, settings)
    finish(settings, "Start-up", tables)


if __name__ == "__main__":
    main()
