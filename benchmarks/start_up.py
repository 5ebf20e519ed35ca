"""Processor seconds until something happens: the imports, the commands of ``ddn``, and the first step of a fit."""

import os
import subprocess
import sys
import timeit
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback

from benchmarks.common import Row, arguments, finish

ROOT = Path(__file__).parents[1]
LIBRARIES, DDN = "import torch, lightning", ["-m", "ddn_lightning"]
STARTS = {
    LIBRARIES: ["-c", LIBRARIES],
    "ddn --version": [*DDN, "--version"],
    "ddn --help": [*DDN, "--help"],
    "ddn configs": [*DDN, "configs"],
    "ddn fit, until the first step, without an exit": [
        *[*DDN, "fit", "-c", "quickstart"],
        "--trainer.callbacks+=benchmarks.start_up.ExitAtFirstStep",
    ],
}


class ExitAtFirstStep(Callback):
    """Ends the process when training begins."""

    def on_train_batch_start(self, *_: Any) -> None:
        """End without cleaning up, which would take another second."""
        os._exit(0)


def children_seconds() -> float:
    """Processor time of all processes started from here that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def start(options: list[str]) -> None:
    """Start Python in an empty folder and wait for its end."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        command = [sys.executable, *options]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)  # noqa: S603


def main() -> None:
    """Measure every start."""
    settings = arguments(__doc__).parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(settings.rounds):
        for name, options in STARTS.items():
            seconds[name].append(timeit.timeit(partial(start, options), timer=children_seconds, number=1))
    least = {name: min(times) for name, times in seconds.items()}
    rows: list[Row] = [
        {"start": f"`{name}`", "s": s, "to the libraries": s / least[LIBRARIES]} for name, s in least.items()
    ]
    finish(settings, "Start-up", {"Processor time, the least of all rounds": rows})


if __name__ == "__main__":
    main()
