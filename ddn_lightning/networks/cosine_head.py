"""A head with cosine logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class CosineHead(nn.Module):
    """Logits are scaled cosines between the features and one weight vector per class.

    Args:
        feature_dim: Size of the features.
        num_classes: Number of classes.
        scale: Factor of the cosines.
        learn_scale: Whether the scale is a parameter.
    """

    scale: float | nn.Parameter

    def __init__(self, feature_dim: int, num_classes: int, scale: float, learn_scale: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, feature_dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as nn.Linear
        self.scale = nn.Parameter(torch.tensor(float(scale))) if learn_scale else scale

    def forward(self, features: Tensor) -> Tensor:
        """Logits (batch, num_classes)."""
        return self.scale * self.cosines(features)

    def cosines(self, features: Tensor, is_frozen: Tensor | None = None) -> Tensor:
        """Cosines (batch, num_classes); no gradient for the weights of frozen classes."""
        weight: Tensor = self.weight
        if is_frozen is not None:
            weight = torch.where(is_frozen[:, None], weight.detach(), weight)
        return functional.linear(functional.normalize(features), functional.normalize(weight))
