"""A head that looks at directions only."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class CosineHead(nn.Module):
    """Logits are scaled cosines between the features and one weight vector per class.

    Args:
        feature_dim: Size of the features.
        num_classes: Number of classes.
        scale: What the cosines are multiplied by.
    """

    def __init__(self, feature_dim: int, num_classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, feature_dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as nn.Linear does
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Logits (batch, num_classes)."""
        return self.scale * functional.linear(functional.normalize(features), functional.normalize(self.weight))
