"""Datasets as sequences of tasks."""

from ddn_lightning.data.grown_sequence import GrownSequence
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.plan import Plan
from ddn_lightning.data.rand_augment import RandAugment
from ddn_lightning.data.split_cifar import SplitCIFAR10, SplitCIFAR100
from ddn_lightning.data.split_clear10 import SplitCLEAR10
from ddn_lightning.data.split_core50 import SplitCORe50NC, SplitCORe50NI
from ddn_lightning.data.split_digits import SplitDigits
from ddn_lightning.data.split_domain_folder import SplitDomainFolder
from ddn_lightning.data.split_image_folder import SplitImageFolder
from ddn_lightning.data.split_listed_images import SplitCUB200, SplitImageNet100, SplitMiniImageNet
from ddn_lightning.data.split_tiny_imagenet import SplitTinyImageNet
from ddn_lightning.data.split_torchvision import SplitTorchvision
from ddn_lightning.data.streams.domain_stream import Corruptions, DomainStream, PermutedPixels, RotatedImages
from ddn_lightning.data.streams.fewer_samples import FewShot, LongTail
from ddn_lightning.data.streams.label_noise import LabelNoise
from ddn_lightning.data.streams.shifted_classes import ShiftedClasses
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.data.streams.without_boundaries import Blurry, GaussianDrift
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.data.task_sequence import TaskSequence

__all__ = [
    "Blurry",
    "Corruptions",
    "DomainStream",
    "FewShot",
    "GaussianDrift",
    "GrownSequence",
    "ImageTransform",
    "LabelNoise",
    "LongTail",
    "PermutedPixels",
    "Plan",
    "RandAugment",
    "RotatedImages",
    "ShiftedClasses",
    "SplitCIFAR10",
    "SplitCIFAR100",
    "SplitCLEAR10",
    "SplitCORe50NC",
    "SplitCORe50NI",
    "SplitCUB200",
    "SplitDigits",
    "SplitDomainFolder",
    "SplitImageFolder",
    "SplitImageNet100",
    "SplitMiniImageNet",
    "SplitTinyImageNet",
    "SplitTorchvision",
    "Stream",
    "TaskLoader",
    "TaskSequence",
]
