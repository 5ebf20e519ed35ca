"""A frozen backbone whose features are computed once."""

from typing import Self

import torch
from torch import Tensor, nn

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.samples import Samples


class FrozenFeatures(Backbone):
    """A backbone that is not trained: the features of all images are computed once, at the start of a fit.

    Stream and memory then hold features instead of images, and a step trains the head alone. The results are those of
    the same backbone, frozen, up to rounding. It needs data without augmentation, which changes the features of an
    image from step to step. A trained method predicts for images, as any other.

    Args:
        backbone: The backbone. It stays in evaluation mode.
        cache_dir: Folder where the features of a split are kept for later runs; ``None`` computes them in each fit.

    Example:
        >>> import torch
        >>> from ddn_lightning import SmallNet
        >>> cached = FrozenFeatures(SmallNet(feature_dim=8))
        >>> features = cached(torch.zeros(2, 1, 8, 8))
        >>> cached(features) is features
        True
    """

    def __init__(self, backbone: Backbone, cache_dir: str | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.cache_dir = cache_dir
        self.feature_dim = backbone.feature_dim
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, feature_dim) of images (batch, channels, height, width); features are returned unchanged."""
        return images if is_features(images) else self.backbone(images)

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode."""
        return super().train(False)


def is_features(images: Tensor) -> bool:
    """Whether these are features (batch, feature_dim), which are neither augmented nor normalised."""
    return images.dim() == 2


def check_holds_images(backbone: nn.Module, name: str, does: str = "learns") -> None:
    """Refuse :class:`FrozenFeatures` with a class of this ``name`` that learns or changes images."""
    if isinstance(backbone, FrozenFeatures):
        raise ConfigurationError(
            f"{name} {does} the images of the memory, which holds features with FrozenFeatures: use the backbone "
            f"{type(backbone.backbone).__name__} itself"
        )


def stored_form(backbone: Backbone, image_shape: tuple[int, ...]) -> Samples:
    """A sample in the form in which the memory holds it: with features for :class:`FrozenFeatures`."""
    is_frozen = isinstance(backbone, FrozenFeatures)
    shape = (backbone.feature_dim,) if is_frozen else image_shape
    images = torch.zeros(1, *shape, dtype=torch.float32 if is_frozen else torch.uint8)
    return Samples(images, labels=torch.zeros(1, dtype=torch.long), tasks=torch.zeros(1, dtype=torch.long))
