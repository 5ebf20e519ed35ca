"""Networks compiled by ``torch.compile``."""

from typing import Any, Literal, TypeVar, get_args

from torch import nn
from torch._dynamo import OptimizedModule

from ddn_lightning.errors import ConfigurationError, note

CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
Network = TypeVar("Network", bound=nn.Module)


def compiled_in_place(network: Network, mode: bool | CompileMode = False) -> Network:
    """The network, compiled by ``network.compile(mode=mode)`` if asked to.

    The module of ``torch.compile(network)`` changes the names of the weights, so that its checkpoints do not fit the
    network. It is replaced by the network within, compiled with the same backend, mode and options.
    """
    if isinstance(network, OptimizedModule):
        inner: Any = network._orig_mod
        inner._compiled_call_impl = network.dynamo_ctx(inner._call_impl)  # as nn.Module.compile does
        note("backbone: torch.compile(network) is taken as network.compile(), which keeps the names of its weights")
        return inner  # type: ignore[no-any-return]
    if mode:
        modes = get_args(CompileMode)
        if mode is not True and mode not in modes:
            raise ConfigurationError(f"compile must be true, false or one of {', '.join(modes)}, got {mode!r}")
        network.compile(mode=None if mode is True else mode)
    return network
