"""The interface of backbones."""

from torch import Tensor, nn

from ddn_lightning.checkpoint.construction import Constructed


class Backbone(Constructed, nn.Module):
    """A network from normalised images to features, without a head.

    In Python any module with an attribute ``feature_dim`` works; the command line needs a subclass.
    """

    feature_dim: int

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim)."""
        raise NotImplementedError
