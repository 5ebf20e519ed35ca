"""A GPU that is not there: tensors that say they are on a device, are computed on the host, and are watched.

The device is one that torch knows by name and has no code for here (``lazy``): nothing on it is computed but by
:class:`Watch`. Forward, backward and forward-mode derivatives, optimizers and Lightning's loops run as they are, with
real numbers. What a GPU would refuse, an operation on tensors of the host and of the device, raises
:class:`DeviceMixError`. What would make the host wait for it is noted as a :class:`Wait`, with the function of the
package that asked for it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.accelerators import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import ddn_lightning

PACKAGE = os.path.dirname(ddn_lightning.__file__) + os.sep
DEVICE = torch.device("lazy", 0)
aten: Any = torch.ops.aten

# a value, or a shape that depends on values, comes back to the host
READS = (aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_consecutive)
READS += (aten.unique_dim, aten.repeat_interleave, aten.bincount)
READS += (aten.isin,)  # looks for duplicates once there are enough elements
INDEXING = (
    aten.index,
    aten._unsafe_index,
    aten.index_put,
    aten.index_put_,
    aten._index_put_impl_,
    aten._unsafe_index_put,
)

# Lightning's functions around a batch, and ours for what comes between tasks
STEPS = {("training_epoch_loop.py", "advance"), ("evaluation_loop.py", "_evaluation_step")}
BETWEEN_STEPS = {"_run_task_begin", "_run_task_end", "_leave_task", "_run_missed_evaluation"}


class DeviceMixError(RuntimeError):
    """An operation that a GPU refuses: some of its tensors are on the host."""


@dataclass(frozen=True)
class Wait:
    """A moment at which the host waits for the device.

    Args:
        where: File and function of the package; ``lightning`` if it was not asked for by the package.
        what: Operation that waits.
        in_step: Whether in a step of training or evaluation, rather than between tasks or in a summary.
    """

    where: str
    what: str
    in_step: bool


class OnDevice(Tensor):
    """A tensor whose numbers are in another one, on the host."""

    on_host: Tensor

    @staticmethod
    def __new__(cls, on_host: Tensor) -> "OnDevice":
        layout = {"strides": on_host.stride(), "storage_offset": on_host.storage_offset(), "dtype": on_host.dtype}
        made = Tensor._make_wrapper_subclass(cls, on_host.shape, device=DEVICE, **layout)
        made.on_host = on_host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("there is no device outside of stand_in_gpu()")

    def __repr__(self) -> str:
        return f"OnDevice({self.on_host})"

    def tolist(self) -> Any:
        return self.cpu().tolist()  # as torch does, but not for classes like this one


class Watch(TorchDispatchMode):
    """Computes on the host what is on the device, and notes when the host waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []

    def places_in_steps(self, begin: int = 0, end: int | None = None) -> set[str]:
        """Where the host has waited within steps."""
        return {wait.where for wait in self.waits[begin:end] if wait.in_step}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        was_on_device, is_collective = OnDevice in types, operation.namespace == "c10d"
        is_on_device = torch.device(kwargs["device"]).type == DEVICE.type if kwargs.get("device") else was_on_device
        if not (was_on_device or is_on_device or is_collective):
            return operation(*args, **kwargs)
        if what := self._check(operation, args, kwargs, list(_tensors([args, kwargs.values()]))):
            where, in_step = _place()
            self.waits.append(Wait(where, what, in_step))
        host_args = _each(lambda tensor: getattr(tensor, "on_host", tensor), args)
        host_kwargs = {name: _each(lambda tensor: getattr(tensor, "on_host", tensor), v) for name, v in kwargs.items()}
        if "device" in host_kwargs:
            host_kwargs["device"] = torch.device("cpu")
        if operation is aten._efficientzerotensor.default:  # has no memory, and what is in it could not be used
            operation = aten.zeros.default
        found = operation(*host_args, **host_kwargs)
        if operation is aten.copy_.default:
            return args[0]
        found = _each(OnDevice, found) if is_on_device else found
        is_of_args = was_on_device and is_on_device and not is_collective
        return return_and_correct_aliasing(operation, args, kwargs, found) if is_of_args else found

    def _check(self, operation: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> str | None:
        """What the host has to wait for, if anything; raises what a GPU would refuse."""
        packet = operation.overloadpacket
        is_host = [not isinstance(tensor, OnDevice) for tensor in tensors]
        if packet in (aten._to_copy, aten.copy_):
            return _copy(operation, args, kwargs, is_host)
        if "device" in kwargs:  # something new, for which the tensors say shape and type only
            return None
        if packet in INDEXING:
            is_refused, what = _indexing(args)
        elif operation.namespace == "c10d":  # by NCCL, which knows the device only
            is_refused, what = any(is_host) and packet is not torch.ops.c10d.barrier, None
        else:
            is_scalar = [host and tensor.dim() == 0 for host, tensor in zip(is_host, tensors, strict=True)]
            takes_scalars = torch.Tag.pointwise in operation.tags or packet is aten.fill_
            is_refused = any(is_host) and not (takes_scalars and is_scalar == is_host)
            is_refused |= operation._schema.is_mutable and any(is_host[:1])  # a result on the host
            what = packet.__name__ if packet in READS else None
        if is_refused:
            kinds = [
                f"{'host' if host else 'device'} {tuple(t.shape)}" for host, t in zip(is_host, tensors, strict=True)
            ]
            raise DeviceMixError(f"{operation} of {', '.join(kinds)}, at {_place()[0]}")
        return what


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif not isinstance(value, str) and isinstance(value, Iterable):
            yield from _tensors(value)


def _each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same, with tensors changed, in lists and tuples too."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)([_each(change, part) for part in value]) if isinstance(value, list | tuple) else value


def _copy(operation: Any, args: Any, kwargs: Any, is_host: list[bool]) -> str | None:
    """A copy to the device waits unless told not to; one to the host always does, or its numbers are not there yet."""
    if operation.overloadpacket is aten.copy_:
        is_host_before, is_host_after = is_host[1], is_host[0]
        is_non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        is_host_before, device = is_host[0], kwargs.get("device")
        is_host_after = is_host_before if device is None else torch.device(device).type != DEVICE.type
        is_non_blocking = kwargs.get("non_blocking", False)
    if is_host_before == is_host_after:
        return None
    if is_host_after:
        return "copy to the host"
    return None if is_non_blocking else "copy to the device"


def _indexing(args: Any) -> tuple[bool, str | None]:
    """Whether it is refused, and what is waited for. The device's tensors may be indexed from the host, at a price."""
    indexed, indices, *values = args
    indices = [index for index in indices if index is not None]
    values = [value for value in values if isinstance(value, Tensor)]
    if not isinstance(indexed, OnDevice):
        return True, None
    if any(value.dim() and not isinstance(value, OnDevice) for value in values):
        return True, None
    if not all(isinstance(index, OnDevice) for index in indices):
        return False, "index from the host"
    fills = bool(values) and values[0].numel() == 1  # then a mask needs no places
    is_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    return False, "places of a mask" if is_mask and not fills else None


def _place() -> tuple[str, bool]:
    """The innermost function of the package that is running, and whether within a step."""
    where, in_step, between = None, False, False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        function = frame.f_code
        if where is None and function.co_filename.startswith(PACKAGE):
            where = f"{function.co_filename.removeprefix(PACKAGE)}:{function.co_qualname}"
        in_step |= (os.path.basename(function.co_filename), function.co_name) in STEPS
        between |= function.co_name in BETWEEN_STEPS
        frame = frame.f_back
    return where or "lightning", in_step and not between


class StandInAccelerator(Accelerator):
    """What Lightning wants to know about a device."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return DEVICE.type


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)


@contextmanager
def stand_in_gpu() -> Iterator[Watch]:
    """Have the device, and watch it."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # let torch.tensor(..., device=...) make it on the host, and move it
    try:
        # torch has no autocast for the device
        with patch.object(torch, "autocast", _Autocast), Watch() as watch:
            yield watch
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
