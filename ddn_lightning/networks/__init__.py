"""Backbones: networks from images to features, without a head."""

from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.cosine_head import CosineHead
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.networks.small_net import SmallNet

__all__ = ["Backbone", "CosineHead", "ResNet18", "SmallNet"]
