"""The interface of backbones; a backbone with its head as one module, and compiled."""

from collections import OrderedDict
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from ddn_lightning.checkpoint.construction import Constructed
from ddn_lightning.errors import ConfigurationError, note


class Backbone(Constructed, nn.Module):
    """A network from normalised images to features, without a head.

    In Python any module with an attribute ``feature_dim`` works; the command line needs a subclass.
    """

    feature_dim: int

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim)."""
        raise NotImplementedError


class Classifier(nn.Sequential):
    """A backbone and its head; the logits are :func:`widened`."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__(OrderedDict(backbone=backbone, head=head))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes)."""
        return widened(self.get_submodule("head")(self.get_submodule("backbone")(images)))


def widened(outputs: Tensor) -> Tensor:
    """A module's outputs, under autocast in float32: it leaves log-softmax and others in half precision on a CPU."""
    is_half = outputs.dtype in (torch.bfloat16, torch.float16)
    return outputs.float() if is_half and torch.is_autocast_enabled(outputs.device.type) else outputs


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
