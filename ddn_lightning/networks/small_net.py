"""A network for 8x8 digits that trains in seconds and has no BatchNorm."""

from torch import Tensor, nn

from ddn_lightning.errors import check_positive
from ddn_lightning.networks.backbone import Backbone


class SmallNet(Backbone):
    """Two convolutions and a fully connected layer.

    Without BatchNorm samples are independent, so several devices compute exactly what one does. Used in the tests, the
    notebooks and the quick start.

    Args:
        in_channels: Channels of the images: 1 for grey, 3 for colour.
        width: Channels of the first convolution; the second has twice as many.
        feature_dim: Size of the output.
    """

    def __init__(self, in_channels: int = 1, width: int = 16, feature_dim: int = 64) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, width=width, feature_dim=feature_dim)
        self.feature_dim = feature_dim
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(2 * width * 16, feature_dim),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim)."""
        features: Tensor = self.layers(images)
        return features
