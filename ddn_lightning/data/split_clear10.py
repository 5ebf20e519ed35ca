"""CLEAR-10: photos of ten years, a task for each year."""

import os
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.image_tree import ImageFile, class_folders, full_path, list_images
from ddn_lightning.data.split_image_folder import SplitImageFolder

FOLDERS = {"train": "train_image_only", "test": "test_image_only"}


class SplitCLEAR10(SplitImageFolder):
    """CLEAR-10: eleven classes, background among them, in ten tasks, the buckets of 2004 to 2014 in their order.

    Origin: Z. Lin et al., `The CLEAR Benchmark <https://arxiv.org/abs/2201.06289>`_, 2021.

    Args:
        root: Folder with ``train_image_only/labeled_images/<bucket>/<class>/*``, and so in ``test_image_only``.
        image_size: Height and width to resize every image to.
        **kwargs: Arguments of :class:`SplitImageFolder`; the number of tasks is that of the buckets.
    """

    name = "clear10"
    has_domains = True

    def __init__(self, root: str, image_size: int = 224, **kwargs: Any) -> None:
        self.buckets = sorted(class_folders(_labelled(root, "train")), key=lambda name: (len(name), name))
        super().__init__(root, len(self.buckets), image_size, **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The class names, in alphabetical order."""
        return sorted(class_folders(os.path.join(_labelled(root, "train"), self.buckets[0])))

    def files(self, split: str) -> list[ImageFile]:
        """The images of a split, bucket by bucket."""
        return [file for bucket in self.buckets for file in self._bucket(split, bucket)]

    def load_tasks(self, train: bool) -> Tensor:
        """The bucket of each image."""
        sizes = [len(self._bucket("train" if train else "test", bucket)) for bucket in self.buckets]
        return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

    def _bucket(self, split: str, bucket: str) -> list[ImageFile]:
        folder = os.path.join(_labelled(self._reader.root, split), bucket)
        return list_images([os.path.join(folder, name) for name in self.class_names])


def _labelled(root: str, split: str) -> str:
    return os.path.join(full_path(root), FOLDERS[split], "labeled_images")
