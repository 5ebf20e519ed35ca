"""Normalisations that other authors have proposed against BatchNorm's lean to the newest task, as backbones.

Run by their import path: ``ddn fit ... --model.backbone study.normalization.ContinualResNet18``.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import ResNet18

GROUPS = 8  # two channels each in the first stage at width 16, as the authors' 32 groups have at width 64


class ContinualNorm2d(nn.BatchNorm2d):
    """Continual Normalization (Pham et al., ICLR 2022, https://arxiv.org/abs/2203.16102): BN(GN(x)).

    The GroupNorm has no parameters of its own.

    Args:
        num_features: Channels.
        groups: Groups of the GroupNorm.
    """

    def __init__(self, num_features: int, groups: int = GROUPS) -> None:
        super().__init__(num_features)
        self.groups = groups

    def forward(self, features: Tensor) -> Tensor:
        """The normalised features."""
        return super().forward(functional.group_norm(features, self.groups, eps=self.eps))


class ContinualResNet18(ResNet18):
    """ResNet-18 with :class:`ContinualNorm2d`.

    Args:
        in_channels: Channels of the images.
        width: Channels of the first stage.
        groups: Groups of the GroupNorm.
    """

    def __init__(self, in_channels: int = 3, width: int = 64, groups: int = GROUPS) -> None:
        super().__init__(in_channels, width)
        replace_batch_norm(self, lambda channels: ContinualNorm2d(channels, groups))


class GroupResNet18(ResNet18):
    """ResNet-18 with GroupNorm, which has no statistics.

    Args:
        in_channels: Channels of the images.
        width: Channels of the first stage.
        groups: Groups of the GroupNorm.
    """

    def __init__(self, in_channels: int = 3, width: int = 64, groups: int = GROUPS) -> None:
        super().__init__(in_channels, width)
        replace_batch_norm(self, lambda channels: nn.GroupNorm(groups, channels))


def replace_batch_norm(module: nn.Module, make: Callable[[int], nn.Module]) -> None:
    """Replace each BatchNorm of a module.

    Args:
        module: The module.
        make: Makes a layer for a number of channels.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, make(child.num_features))
        else:
            replace_batch_norm(child, make)
