"""Datasets as sequences of tasks."""

from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.split_cifar import SplitCIFAR10, SplitCIFAR100
from ddn_lightning.data.split_digits import SplitDigits
from ddn_lightning.data.split_image_folder import SplitImageFolder
from ddn_lightning.data.split_tiny_imagenet import SplitTinyImageNet
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.data.task_sequence import TaskSequence

__all__ = [
    "ImageTransform",
    "SplitCIFAR10",
    "SplitCIFAR100",
    "SplitDigits",
    "SplitImageFolder",
    "SplitTinyImageNet",
    "TaskLoader",
    "TaskSequence",
]
