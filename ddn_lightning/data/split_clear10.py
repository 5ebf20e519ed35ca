"""CLEAR-10: photos of ten years, a task for each year."""

import os
from typing import Any

from ddn_lightning.data.image_tree import class_folders, full_path
from ddn_lightning.data.split_domain_folder import SplitDomainFolder
from ddn_lightning.data.split_image_folder import SplitImageFolder

FOLDERS = {"train": "train_image_only", "test": "test_image_only"}


class SplitCLEAR10(SplitDomainFolder):
    """CLEAR-10: eleven classes, background among them, in ten tasks, the buckets of 2004 to 2014 in their order.

    Origin: Z. Lin et al., `The CLEAR Benchmark <https://arxiv.org/abs/2201.06289>`_, 2021.

    Args:
        root: Folder with ``train_image_only/labeled_images/<bucket>/<class>/*``, and so in ``test_image_only``.
        image_size: Height and width to resize every image to.
        **kwargs: Arguments of :class:`SplitImageFolder`; the number of tasks is that of the buckets.
    """

    name = "clear10"

    def __init__(self, root: str, image_size: int = 224, **kwargs: Any) -> None:
        self.domains = sorted(class_folders(_labelled(root, "train")), key=lambda name: (len(name), name))
        SplitImageFolder.__init__(self, root, len(self.domains), image_size, **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The class names, in alphabetical order."""
        return sorted(class_folders(os.path.join(_labelled(root, "train"), self.domains[0])))

    def domain_folder(self, split: str, domain: str) -> str:
        """The folder of a bucket."""
        return os.path.join(_labelled(self._reader.root, split), domain)


def _labelled(root: str, split: str) -> str:
    return os.path.join(full_path(root), FOLDERS[split], "labeled_images")
