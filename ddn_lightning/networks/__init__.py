"""Backbones: networks from images to features, without a head."""

from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.cosine_head import CosineHead
from ddn_lightning.networks.efficientnet_lite0 import EfficientNetLite0
from ddn_lightning.networks.frozen_features import FrozenFeatures
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.networks.small_net import SmallNet
from ddn_lightning.networks.timm_backbone import TimmBackbone
from ddn_lightning.networks.torchvision_backbone import TorchvisionBackbone

__all__ = [
    "Backbone",
    "CosineHead",
    "EfficientNetLite0",
    "FrozenFeatures",
    "ResNet18",
    "SmallNet",
    "TimmBackbone",
    "TorchvisionBackbone",
]
