"""Runs of a plan on a Ray cluster."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.reproduce.executor import GRACE_SECONDS, POLL_SECONDS, PROGRAM, Event, ProcessExecutor, ended_before
from ddn_lightning.reproduce.plan import Run

LOST_MACHINES = 3  # that a run survives: Ray starts it on another one, where it goes on from its last checkpoint


class RayExecutor:
    """Executes runs on a Ray cluster, each with one CPU and, if the cluster has any, one GPU.

    All machines must see the same folders under the same paths: configurations, datasets and runs. The run of a machine
    that is lost goes on at another one; if the first still executes it, unseen by Ray, the other waits for its result.

    Args:
        jobs: Number of parallel runs, or ``None`` for as many as the cluster has devices.
        address: Address of the cluster, such as ``auto`` or ``ray://head:10001``; ``None`` starts a local one.
    """

    def __init__(self, jobs: int | None = None, address: str | None = None) -> None:
        if jobs is not None:
            check_positive(jobs=jobs)
        self.ray = _import_ray()
        self.was_connected = self.ray.is_initialized()
        try:
            self.ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigurationError(f"address must be of a running Ray cluster, got {address}: {error}") from error
        resources = self.ray.cluster_resources()
        self.num_gpus = 1 if resources.get("GPU", 0) >= 1 else 0
        self.jobs = jobs or max(1, int(resources.get("GPU" if self.num_gpus else "CPU", 0)))

    def execute(self, runs: Sequence[Run], is_stopped: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Execute all runs and yield their events; see :meth:`ProcessExecutor.execute`.

        Meanwhile standard output goes to standard error: Ray prints there which machines it has lost.
        """
        with redirect_stdout(sys.stderr):
            yield from self._events(runs, is_stopped)

    def _events(self, runs: Sequence[Run], is_stopped: Callable[[], bool]) -> Iterator[Event]:
        task = self.ray.remote(num_cpus=1, num_gpus=self.num_gpus, max_retries=LOST_MACHINES)(_execute)
        waiting = runs if isinstance(runs, deque) else deque(runs)
        active: dict[Any, Run] = {}
        try:
            while (waiting or active) and not is_stopped():
                while waiting and len(active) < self.jobs:
                    run = waiting.popleft()
                    if (event := ended_before(run)) is not None:
                        yield event
                        continue
                    active[task.remote(run, Path.cwd())] = run
                    yield Event(run, "started")
                ended = self.ray.wait(list(active), timeout=POLL_SECONDS)[0] if active else []
                for reference in ended:
                    yield self._outcome(active.pop(reference), reference)
            for run in active.values():
                yield Event(run, "stopping")
        finally:
            self._stop(list(active))

    def _outcome(self, run: Run, reference: Any) -> Event:
        try:
            event: Event = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # too many machines were lost, or ran out of memory
            return Event(run, "failed", message=str(error).strip().splitlines()[-1])
        return event

    def _stop(self, references: list[Any]) -> None:
        """Interrupt the remaining runs, wait until they have saved, and leave the cluster."""
        for reference in references:
            self.ray.cancel(reference)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=GRACE_SECONDS)
        if not self.was_connected:
            self.ray.shutdown()


def _execute(run: Run, working_folder: Path) -> Event:
    """Execute one run, on a worker."""
    os.chdir(working_folder)
    *_, last = ProcessExecutor(program=PROGRAM).execute([run])  # a single run needs no preparation
    return last


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError('executor ray needs Ray, which is not installed: pip install -e ".[ray]"') from error
    return ray  # type: ignore[no-any-return]
