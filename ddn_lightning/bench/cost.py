"""The cost of an action: its time, the time of its parts, and its peak memory.

On a shared machine, times are comparable only if actions take turns and processor time is measured. Neither
``torch.utils.benchmark.Timer`` (one statement after another, with three times as many warm-up runs) nor
``torch.profiler`` (wall-clock time, with overhead) does that.
"""

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Clock = Callable[[], float]
Timings = dict[str, list[float]]  # seconds of each round, by action
REST = "rest"  # the time outside all parts
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def clock_of(device: torch.device) -> Clock:
    """Processor time of this process on a CPU; on other devices wall-clock time after synchronization."""
    if device.type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return clock


def time_in_turns(
    actions: Mapping[str, Callable[[], object]], rounds: int, clock: Clock, done: Callable[[], None] = lambda: None
) -> Timings:
    """Time actions in rounds of one call each, after a warm-up round.

    Args:
        actions: The actions by name.
        rounds: Number of timed rounds.
        clock: Returns the time in seconds.
        done: Called after each action, for a progress bar.
    """
    timings: Timings = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            start = clock()
            action()
            timings[name].append(clock() - start)
            done()
    return {name: seconds[1:] for name, seconds in timings.items()}


@dataclass(frozen=True)
class Part:
    """A method that is part of an action.

    Args:
        name: Name of the part; several methods may share one.
        owner: The object that has the method.
        function: Name of the method.
        with_nested: Whether the time of parts that it calls counts as its own.
    """

    name: str
    owner: Any
    function: str
    with_nested: bool = False


class PartTimes:
    """Sums up in :attr:`seconds` the time that an action spends in each of its parts, without counting any twice.

    The parts are wrapped while the action is timed.

    Args:
        action: The action.
        parts: Its parts.
        clock: Returns the time in seconds.
    """

    def __init__(self, action: Callable[[], object], parts: Sequence[Part], clock: Clock) -> None:
        self.action = action
        self.parts = parts
        self.clock = clock
        self.seconds = dict.fromkeys([*(part.name for part in parts), REST], 0.0)
        self._open: list[Part] = []
        self._since = 0.0

    def watch(self) -> None:
        """Call the action once and add the times of its parts."""
        for part in self.parts:
            setattr(part.owner, part.function, self._timed(part, getattr(part.owner, part.function)))
        try:
            with self._within(Part(REST, None, "")):
                self.action()
        finally:
            for part in self.parts:
                delattr(part.owner, part.function)  # the wrapper, which hides the method of the class

    def warm_up(self) -> None:
        """Call the action once and forget its times."""
        self.watch()
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def _timed(self, part: Part, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._within(part):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def _within(self, part: Part) -> Iterator[None]:
        self._add_time_since()
        self._open.append(self._open[-1] if self._open and self._open[-1].with_nested else part)
        try:
            yield
        finally:
            self._add_time_since()
            self._open.pop()

    def _add_time_since(self) -> None:
        now = self.clock()
        if self._open:
            self.seconds[self._open[-1].name] += now - self._since
        self._since = now


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory of an action in bytes.

    Args:
        saved: Storages that autograd saves for backward passes.
        allocated: Growth of the allocated memory of the device or, on a CPU, of the resident memory of the process;
            ``None`` if the system does not report it.
    """

    saved: int
    allocated: int | None


def peak_memory(action: Callable[[], object], device: torch.device) -> PeakMemory:
    """The peak memory of an action, which is called once."""
    saved = _SavedStorages()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: _SavedTensor(t.detach(), saved), lambda s: s.tensor):
        allocated = _allocated(action, device)
    return PeakMemory(saved.peak, allocated)


class _SavedStorages:
    """Number of references to each saved storage, and the bytes of all."""

    def __init__(self) -> None:
        self.references: Counter[int] = Counter()
        self.now = self.peak = 0


class _SavedTensor:
    """A saved tensor; counts until the graph releases it."""

    def __init__(self, tensor: Tensor, saved: _SavedStorages) -> None:
        self.tensor, self.saved = tensor, saved
        storage = tensor.untyped_storage()
        self.address, self.size = storage.data_ptr(), storage.nbytes()
        saved.references[self.address] += 1
        saved.now += self.size if saved.references[self.address] == 1 else 0
        saved.peak = max(saved.peak, saved.now)

    def __del__(self) -> None:
        self.saved.references[self.address] -= 1
        self.saved.now -= self.size if not self.saved.references[self.address] else 0


def _allocated(action: Callable[[], object], device: torch.device) -> int | None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not CLEAR.exists():
        action()
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # release the memory that earlier actions freed
    CLEAR.write_text("5")  # reset the peak
    before = _resident("VmRSS")
    action()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024
