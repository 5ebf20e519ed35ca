"""Backbones of timm."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.networks.pretrained_backbone import PretrainedBackbone, check_name


class TimmBackbone(PretrainedBackbone):
    """A model of `timm <https://github.com/huggingface/pytorch-image-models>`_: its pooled features.

    Needs ``pip install ddn-lightning[timm]``.

    Args:
        name: Name of the model, such as ``resnet18`` or, with a tag for the weights, ``resnet18.a1_in1k``.
        pretrained: Whether to fetch the weights, or a file of them; see :class:`PretrainedBackbone`.
        frozen: Whether to keep the weights and the BatchNorm statistics as they are.
        arguments: Further arguments of ``timm.create_model``, such as ``img_size`` of a ViT, ``drop_rate`` or
            ``in_chans`` for images that are neither grey nor colour.

    Example:
        >>> import torch
        >>> TimmBackbone("resnet18")(torch.zeros(2, 3, 32, 32)).shape  # (batch, feature_dim)
        torch.Size([2, 512])
    """

    sources = ("checkpoint_path",)

    def build(self, name: str, pretrained: bool, arguments: Mapping[str, Any]) -> tuple[nn.Module, int, Sequence[str]]:
        """The model without its classifier, the size of its features, and the classifier's names in a state dict."""
        try:
            import timm
        except ImportError as error:
            raise ConfigurationError("TimmBackbone needs timm: pip install ddn-lightning[timm]") from error

        if not timm.is_model(name):
            check_name(name, timm.list_models(), "timm")
        model: Any = timm.create_model(name, pretrained, **{"num_classes": 0, **arguments})
        classifier = model.default_cfg.get("classifier") or ()
        return model, model.head_hidden_size, (classifier,) if isinstance(classifier, str) else classifier
