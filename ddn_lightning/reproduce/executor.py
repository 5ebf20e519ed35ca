"""Executes the runs of a plan as processes: skips finished runs and resumes killed ones."""

import os
import shlex
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
from ddn_lightning.reproduce.prepared_program import CAN_FORK, PreparedProcess, PreparedProgram
from ddn_lightning.runs.files import is_locked, lock_open
from ddn_lightning.runs.results import read_divergence, read_result, read_stop

PROGRAM = (sys.executable, "-m", "ddn_lightning")
QUIET = ("--trainer.enable_progress_bar", "false")  # it would fill the log
PROMPT = "$ ddn "  # begins each attempt in the log
POLL_SECONDS = 0.2
GRACE_SECONDS = 120.0  # to finish the current batch and save a checkpoint


@dataclass(frozen=True)
class Event:
    """A change of state of a run.

    Args:
        run: The run.
        state: ``found`` if it was finished before, ``elsewhere`` if another plan executes it, ``stopping`` if it was
            asked to save and exit, ``diverged`` if its loss is not finite, now or in an earlier attempt. A run that a
            :class:`StopAtTask` has stopped is finished.
        seconds: Duration of this attempt.
        message: The error of a failed run; where and how a run diverged.
    """

    run: Run
    state: Literal["found", "elsewhere", "started", "stopping", "finished", "failed", "diverged"]
    seconds: float = 0.0
    message: str = ""


class Executor(Protocol):
    """Executes the runs of a plan."""

    jobs: int

    def execute(self, runs: Sequence[Run], is_stopped: Callable[[], bool]) -> Iterator[Event]:
        """Execute all runs and yield their events."""


@dataclass(frozen=True)
class _Job:
    run: Run
    process: "subprocess.Popen[bytes] | PreparedProcess"
    started: float


class ProcessExecutor:
    """Executes runs on this machine.

    A run locks its log while any of its processes lives, even if this one is killed. Plans that share runs can
    therefore be executed at the same time: one executes the run, the others wait for its result, as they do for a run
    that was started by hand. Nothing is removed: where ``ddn fit`` can neither resume nor start over, the run failed.

    Args:
        jobs: Number of parallel runs.
        devices: GPUs for the jobs, as in ``CUDA_VISIBLE_DEVICES``, assigned in turn; empty for the CPU.
        program: Program to call with the arguments of ``ddn``; ``None`` starts all runs from a
            :class:`PreparedProgram`, where the system can.
    """

    def __init__(self, jobs: int = 1, devices: Sequence[str] = (), program: Sequence[str] | None = None) -> None:
        check_positive(jobs=jobs)
        self.jobs = jobs
        self.devices = tuple(devices)
        self.program = PROGRAM if program is None else tuple(program)
        self.is_prepared = program is None and CAN_FORK
        self._prepared: PreparedProgram | None = None

    def execute(self, runs: Sequence[Run], is_stopped: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Execute all runs and yield their events.

        Args:
            runs: The runs. A ``deque`` is emptied, and may be extended between two events.
            is_stopped: Polled several times a second; once true, all processes are asked to save and exit.
        """
        waiting = runs if isinstance(runs, deque) else deque(runs)
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
            if self._prepared is not None:
                self._prepared.close()
                self._prepared = None

    def _fill(self, slot: int, waiting: deque[Run], active: dict[int, _Job]) -> Iterator[Event]:
        """Start the first run that is neither finished nor executed elsewhere."""
        for _ in range(len(waiting)):
            run = waiting.popleft()
            if (event := ended_before(run)) is not None:
                yield event
                continue
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            with log_of(run).open("ab") as log:
                if not lock_open(log.fileno()) or is_locked(run.folder):
                    waiting.append(run)
                    yield Event(run, "elsewhere")
                elif (event := ended_before(run)) is not None:  # in the meantime
                    yield event
                else:
                    active[slot] = self._start(run, slot, log)
                    yield Event(run, "started")
                    return

    def _start(self, run: Run, slot: int, log: BinaryIO) -> _Job:
        arguments = run.command(can_resume(run.folder))
        log.write(f"{PROMPT}{shlex.join(arguments)}\n".encode())
        log.flush()
        arguments, environment = [*arguments, *QUIET], self._environment(slot)
        if self.is_prepared:
            self._prepared = self._prepared or PreparedProgram(environment)
            return _Job(run, self._prepared.start(arguments, log.fileno(), environment), time.monotonic())
        process = subprocess.Popen(  # noqa: S603  # our own program
            [*self.program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process only, which then stops the others
        )
        return _Job(run, process, time.monotonic())

    def _environment(self, slot: int) -> dict[str, str]:
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        # by default each job would use all cores
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        return environment


def log_of(run: Run) -> Path:
    """The log of a run: beside its folder, which a run that fails early removes."""
    return run.folder.with_name(f"{run.folder.name}.log")


def ended_before(run: Run) -> Event | None:
    """The event of a run that finished or diverged earlier, or ``None`` if it must be started."""
    if has_ended_well(run.folder):
        return Event(run, "found")
    reason = read_divergence(run.folder)
    return None if reason is None else Event(run, "diverged", message=reason)


def has_ended_well(folder: Path) -> bool:
    """Whether a run has learned all its tasks, or has stopped at a task's end as it was told to."""
    return read_result(folder) is not None or read_stop(folder) is not None


def can_resume(folder: Path) -> bool:
    """Whether a run was begun and has not ended: it resumes, or starts over if nothing but a run's files is there."""
    is_ended = has_ended_well(folder) or read_divergence(folder) is not None
    return not is_ended and folder.is_dir()


def _outcome(job: _Job) -> Event:
    seconds = time.monotonic() - job.started
    if job.process.returncode == 0 and has_ended_well(job.run.folder):
        return Event(job.run, "finished", seconds)
    if (reason := read_divergence(job.run.folder)) is not None:
        return Event(job.run, "diverged", seconds, reason)
    log = log_of(job.run).read_text(encoding="utf-8", errors="replace").strip()
    lines = log.rpartition(f"\n{PROMPT}")[2].splitlines()  # of this attempt
    errors = [line for line in lines if line.startswith("error: ")]  # a tip may follow the error
    code = job.process.wait()
    if not errors and code <= 0:
        reason = f"it was killed by signal {-code}" if code else "it ended before its last task"
        return Event(job.run, "failed", seconds, reason)
    return Event(job.run, "failed", seconds, (errors or lines)[-1])


def _stop(processes: Sequence["subprocess.Popen[bytes] | PreparedProcess"]) -> None:
    """Ask processes to exit, and kill those that do not in time; at once on a second interrupt."""
    for process in processes:
        _end(process)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            _end(process, at_once=True)
            process.wait()


def _end(process: "subprocess.Popen[bytes] | PreparedProcess", at_once: bool = False) -> None:
    """Signal all processes of a run; on Windows, which has no groups of processes, the first."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL if at_once else signal.SIGTERM)
    else:
        process.kill()
