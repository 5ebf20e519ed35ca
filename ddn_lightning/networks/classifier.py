"""Backbone and head as one module, whose logits have full precision."""

from collections import OrderedDict

import torch
from torch import Tensor, nn


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
