"""Runs of a plan as processes of their own, several at a time; what is finished is skipped, what was killed goes on."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from ddn_lightning.errors import check_positive
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.runs.files import lock_open
from ddn_lightning.runs.results import read_divergence, read_result
from ddn_lightning.runs.run_folder import CHECKPOINTS, LAST

PROGRAM = (sys.executable, "-m", "ddn_lightning")
QUIET = ("--trainer.enable_progress_bar", "false")  # nobody watches, and the log would be full of it
POLL_SECONDS = 0.2
GRACE_SECONDS = 120.0  # to end the current batch and save it


@dataclass(frozen=True)
class Event:
    """What has become of a run.

    Args:
        run: The run.
        state: ``found`` if it was finished before, ``elsewhere`` if another plan executes it, ``stopping`` if it is
            told to save and end, ``diverged`` if its loss is not finite, now or before: it would be again.
        seconds: How long it took this time.
        message: The last line of its log, if it failed; where and how it diverged.
    """

    run: Run
    state: Literal["found", "elsewhere", "started", "stopping", "finished", "failed", "diverged"]
    seconds: float = 0.0
    message: str = ""


class Executor(Protocol):
    """Whatever can execute the runs of a plan."""

    jobs: int

    def execute(self, runs: Sequence[Run], is_stopped: Callable[[], bool]) -> Iterator[Event]:
        """Execute all runs and tell what becomes of them."""


@dataclass(frozen=True)
class _Job:
    run: Run
    process: subprocess.Popen[bytes]
    started: float


class ProcessExecutor:
    """Executes runs on this machine.

    Each run holds a lock on its log for as long as any of its processes lives, even if this one has been killed. So
    plans that share runs can be executed at the same time: one executes the run, the others wait for its result.

    Args:
        jobs: Runs at a time.
        devices: GPUs, as ``CUDA_VISIBLE_DEVICES`` names them, which the jobs take turns on; empty for the CPU.
        program: What to call with the arguments of ``ddn``.
    """

    def __init__(self, jobs: int = 1, devices: Sequence[str] = (), program: Sequence[str] = PROGRAM) -> None:
        check_positive(jobs=jobs)
        self.jobs = jobs
        self.devices = tuple(devices)
        self.program = tuple(program)

    def execute(self, runs: Sequence[Run], is_stopped: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Execute all runs and tell what becomes of them.

        Args:
            runs: The runs.
            is_stopped: Asked several times a second; once it is true, all processes are told to save and end.
        """
        waiting = deque(runs)
        active: dict[int, _Job] = {}
        try:
            while (waiting or active) and not is_stopped():
                for slot in set(range(self.jobs)) - active.keys():
                    yield from self._fill(slot, waiting, active)
                for slot, job in list(active.items()):
                    if job.process.poll() is not None:
                        del active[slot]
                        yield _outcome(job)
                time.sleep(POLL_SECONDS)
            for job in active.values():
                yield Event(job.run, "stopping")
        finally:
            _stop([job.process for job in active.values()])

    def _fill(self, slot: int, waiting: deque[Run], active: dict[int, _Job]) -> Iterator[Event]:
        """Start the first run that can be started, passing over those that are finished or run elsewhere."""
        for _ in range(len(waiting)):
            run = waiting.popleft()
            if (event := ended_before(run)) is not None:
                yield event
                continue
            with open_log(run) as log:
                if not lock_open(log.fileno()):
                    waiting.append(run)
                    yield Event(run, "elsewhere")
                elif (event := ended_before(run)) is not None:  # by now
                    yield event
                else:
                    active[slot] = self._start(run, slot, log)
                    yield Event(run, "started")
                    return

    def _start(self, run: Run, slot: int, log: BinaryIO) -> _Job:
        is_resumed = can_resume(run.folder)
        if not is_resumed and run.folder.is_dir():
            shutil.rmtree(run.folder)  # what a run leaves that was killed before its first checkpoint
        arguments = run.command(is_resumed)
        log.write(f"$ ddn {shlex.join(arguments)}\n".encode())
        log.flush()
        process = subprocess.Popen(  # noqa: S603  # our own program
            [*self.program, *arguments, *QUIET],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment(slot),
            start_new_session=True,  # Ctrl-C goes to this process alone, which then tells the others in its own way
        )
        return _Job(run, process, time.monotonic())

    def _environment(self, slot: int) -> dict[str, str]:
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        # without this each job takes all cores, and all of them wait for each other
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        return environment


def log_of(run: Run) -> Path:
    """The log of a run: beside its folder, which may vanish with a run that fails at its start."""
    return run.folder.with_name(f"{run.folder.name}.log")


def open_log(run: Run) -> BinaryIO:
    """The log of a run, to be continued."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    return log_of(run).open("ab")


def ended_before(run: Run) -> Event | None:
    """What has become of a run that needs not be started: it is finished, or has diverged."""
    if read_result(run.folder) is not None:
        return Event(run, "found")
    reason = read_divergence(run.folder)
    return None if reason is None else Event(run, "diverged", message=reason)


def can_resume(folder: Path) -> bool:
    """Whether the run in a folder was stopped, and has a checkpoint to go on from."""
    is_ended = read_result(folder) is not None or read_divergence(folder) is not None
    return not is_ended and (folder / CHECKPOINTS / LAST).is_file()


def _outcome(job: _Job) -> Event:
    seconds = time.monotonic() - job.started
    if job.process.returncode == 0 and read_result(job.run.folder):
        return Event(job.run, "finished", seconds)
    if (reason := read_divergence(job.run.folder)) is not None:
        return Event(job.run, "diverged", seconds, reason)
    lines = log_of(job.run).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]  # a tip may follow
    return Event(job.run, "failed", seconds, (errors or lines)[-1])


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, and end those that do not; at once when interrupted again."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signal a run's whole session: with several devices it has several processes."""
    if process.poll() is None:
        os.killpg(process.pid, number)
