"""How long it takes until a command begins."""

import os
import subprocess
import sys

from ddn_lightning.bench.stopwatch import Timing

LIBRARIES, COMMAND = "import torch, lightning", "ddn --help"
STARTS = {LIBRARIES: ["-c", LIBRARIES], COMMAND: ["-m", "ddn_lightning", "--help"]}


def time_start_ups(rounds: int) -> dict[str, Timing]:
    """Process time of Pythons that only import what everything is built on, and of our command's help, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds + 1):
        for name, arguments in STARTS.items():
            before = _seconds_of_children()
            command = [sys.executable, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
            seconds[name].append(_seconds_of_children() - before)
    return {name: Timing(tuple(times[1:])) for name, times in seconds.items()}


def _seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system
