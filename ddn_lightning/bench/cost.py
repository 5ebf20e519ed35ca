"""What an action costs: its time in turns with others, the time of its parts, and memory at its peak.

On a machine that does other work as well, times compare only if all actions take turns and processor time counts. So
not by ``torch.utils.benchmark.Timer``, which times one statement after another and executes each three times as often
to warm up, nor by ``torch.profiler``, which knows wall-clock time only and slows down what it watches.
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
REST = "rest"  # of the time, outside all parts
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def clock_of(device: torch.device) -> Clock:
    """Processor time of this process on a CPU; elsewhere wall-clock time, once the device is done."""
    if device.type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return clock


def time_in_turns(
    actions: Mapping[str, Callable[[], object]], rounds: int, clock: Clock, done: Callable[[], None] = lambda: None
) -> Timings:
    """Time actions in rounds of one each, after a round that does not count.

    Args:
        actions: What to time.
        rounds: How often.
        clock: Tells the time in seconds.
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
    """A function that is a part of an action.

    Args:
        name: Of the part; several functions may belong to one.
        owner: The object whose method it is.
        function: Name of the method.
        with_nested: Whether the parts that it calls belong to it.
    """

    name: str
    owner: Any
    function: str
    with_nested: bool = False


class PartTimes:
    """Adds up in :attr:`seconds` what an action spends in each of its parts, nested ones not counted twice.

    The action is the real one: its parts are wrapped while it is watched.

    Args:
        action: What to watch.
        parts: Its parts.
        clock: Tells the time in seconds.
    """

    def __init__(self, action: Callable[[], object], parts: Sequence[Part], clock: Clock) -> None:
        self.action = action
        self.parts = parts
        self.clock = clock
        self.seconds = dict.fromkeys([*(part.name for part in parts), REST], 0.0)
        self._open: list[Part] = []
        self._since = 0.0

    def watch(self) -> None:
        """Do it once, and add up the times of its parts."""
        for part in self.parts:
            setattr(part.owner, part.function, self._timed(part, getattr(part.owner, part.function)))
        try:
            with self._within(Part(REST, None, "")):
                self.action()
        finally:
            for part in self.parts:
                delattr(part.owner, part.function)  # the wrapper, in front of the class's own

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
    """Bytes at the peak of an action.

    Args:
        saved: What autograd holds for backward passes, each storage once.
        allocated: By how much the memory in use grows: the device's or, on a CPU, the process's resident one. ``None``
            where the system does not tell.
    """

    saved: int
    allocated: int | None


def peak_memory(action: Callable[[], object], device: torch.device) -> PeakMemory:
    """Both peaks of an action, which is executed once."""
    saved = _SavedStorages()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _SavedTensor(tensor.detach(), saved), _tensor_of):
        allocated = _allocated(action, device)
    return PeakMemory(saved.peak, allocated)


class _SavedStorages:
    """Bytes of the storages that graphs refer to."""

    def __init__(self) -> None:
        self.references: Counter[int] = Counter()
        self.now = self.peak = 0


class _SavedTensor:
    """A saved tensor, which counts as long as a graph has it."""

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


def _tensor_of(saved: _SavedTensor) -> Tensor:
    return saved.tensor


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
        trim(0)  # give back what earlier actions have left
    CLEAR.write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    action()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024
