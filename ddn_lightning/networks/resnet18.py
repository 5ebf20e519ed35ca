"""ResNet-18 for small images, as used throughout the replay literature."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.errors import check_positive
from ddn_lightning.networks.backbone import Backbone

# For channels last: with fewer, torch 2.15 on a CPU writes out of bounds in the backward pass of a strided 1x1
# convolution. Seen below 8, the width of its AVX2 kernels; 16 is that of the AVX-512 ones.
MIN_CHANNELS = 16


class ResNet18(Backbone):
    """ResNet-18 with a 3x3 stem and no max-pooling, without its head.

    The variant of iCaRL, DER++ and the DDN paper: https://arxiv.org/abs/1512.03385 with a stem for 32x32 images.
    With a linear head for 10 classes it has 11,173,962 parameters at width 64 and 1,094,750 at width 20.

    Args:
        in_channels: Channels of the images.
        width: Channels of the first stage; each further stage doubles them.

    Example:
        >>> import torch
        >>> ResNet18(width=4)(torch.zeros(2, 3, 32, 32)).shape  # (batch, feature_dim)
        torch.Size([2, 32])
    """

    def __init__(self, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, width=width)
        self.feature_dim = 8 * width
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.Sequential(
            _stage(width, width, stride=1),
            _stage(width, 2 * width, stride=2),
            _stage(2 * width, 4 * width, stride=2),
            _stage(4 * width, 8 * width, stride=2),
        )
        if width >= MIN_CHANNELS:
            self.to(memory_format=torch.channels_last)  # an eighth faster on a CPU

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim)."""
        features: Tensor = self.stages(self.stem(images))
        return features.mean(dim=(2, 3))


class _Block(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, features: Tensor) -> Tensor:
        return functional.relu(self.residual(features) + self.shortcut(features))


def _stage(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(in_channels, out_channels, stride), _Block(out_channels, out_channels, 1))
