"""How much memory an action takes at its peak."""

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
    held = _Held()
    with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
        allocated = _allocated(action, device)
    return PeakMemory(held.peak, allocated)


class _Held:
    """Storages that graphs refer to, with how often."""

    def __init__(self) -> None:
        self.references: Counter[int] = Counter()
        self.now = self.peak = 0

    def pack(self, tensor: Tensor) -> "_Reference":
        return _Reference(tensor.detach(), self)

    def unpack(self, reference: "_Reference") -> Tensor:
        return reference.tensor


class _Reference:
    """A saved tensor, which is counted as long as a graph has it."""

    def __init__(self, tensor: Tensor, held: _Held) -> None:
        self.tensor, self.held = tensor, held
        storage = tensor.untyped_storage()
        self.place, self.size = storage.data_ptr(), storage.nbytes()
        held.references[self.place] += 1
        held.now += self.size if held.references[self.place] == 1 else 0
        held.peak = max(held.peak, held.now)

    def __del__(self) -> None:
        self.held.references[self.place] -= 1
        self.held.now -= self.size if not self.held.references[self.place] else 0


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
