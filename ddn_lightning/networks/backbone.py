"""What a method expects of its network."""

from torch import Tensor, nn

from ddn_lightning.construction import Constructed


class Backbone(Constructed, nn.Module):
    """A network from normalised images to features. The method that uses it adds the head.

    A feature extractor from elsewhere needs no more than the attribute ``feature_dim``; only the command line asks for
    a subclass, so that it can list its choices.
    """

    feature_dim: int

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim)."""
        raise NotImplementedError  # as in nn.Module: a network that is none
