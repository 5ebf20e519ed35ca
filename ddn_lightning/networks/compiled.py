"""Networks compiled by ``torch.compile``."""

from typing import Any, TypeVar

from torch import nn
from torch._dynamo import OptimizedModule

from ddn_lightning.notes import note

Network = TypeVar("Network", bound=nn.Module)


def compiled_in_place(network: Network) -> Network:
    """The network within a module of ``torch.compile(network)``, compiled as by ``network.compile()``.

    The module of ``torch.compile`` changes the names of the weights, so that its checkpoints do not fit the network.
    Backend, mode and options stay the same. Another network is returned unchanged.
    """
    if not isinstance(network, OptimizedModule):
        return network
    inner: Any = network._orig_mod
    inner._compiled_call_impl = network.dynamo_ctx(inner._call_impl)  # as nn.Module.compile does
    note("backbone: torch.compile(network) is taken as network.compile(), which keeps the names of its weights")
    compiled: Network = inner
    return compiled
