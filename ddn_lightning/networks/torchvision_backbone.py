"""Backbones of torchvision."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.networks.pretrained_backbone import PretrainedBackbone, check_name


class TorchvisionBackbone(PretrainedBackbone):
    """A classification model of torchvision: the features that its last linear layer gets.

    Args:
        name: Name of the model, such as ``resnet18`` or ``vit_b_16``.
        pretrained: Whether to fetch the weights, or a file of them; see :class:`PretrainedBackbone`.
        frozen: Whether to keep the weights and the BatchNorm statistics as they are.
        arguments: Further arguments of ``torchvision.models.get_model``, such as ``image_size`` of a ViT.

    Example:
        >>> import torch
        >>> TorchvisionBackbone("resnet18")(torch.zeros(2, 3, 32, 32)).shape  # (batch, feature_dim)
        torch.Size([2, 512])
    """

    sources = ("weights",)

    def build(self, name: str, pretrained: bool, arguments: Mapping[str, Any]) -> tuple[nn.Module, int, Sequence[str]]:
        """The model without its last linear layer, the size of its features, and the layer's name in a state dict."""
        from torchvision import models

        check_name(name, models.list_models(module=models), "torchvision")
        model: nn.Module = models.get_model(name, **{"weights": "DEFAULT" if pretrained else None, **arguments})
        if getattr(model, "aux_logits", False):  # GoogLeNet and Inception classify in training by further heads, too
            for part, without in {"aux_logits": False, "aux1": None, "aux2": None, "AuxLogits": None}.items():
                if hasattr(model, part):
                    setattr(model, part, without)
        linear = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise ConfigurationError(f"name must be a model with a linear classifier, got {name}")
        classifier, layer = linear[-1]
        model.set_submodule(classifier, nn.Identity())
        return model, layer.in_features, (classifier,)
