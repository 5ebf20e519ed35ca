"""Split domain folder: a task for each domain of a folder tree of images, with a sub-folder per class."""

import os
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.data.image_tree import ImageFile, list_images, tree_domains
from ddn_lightning.data.split_image_folder import SplitImageFolder


class SplitDomainFolder(SplitImageFolder):
    """Your own images in ``train/<domain>/<class>/*`` and ``test/<domain>/<class>/*``, such as those of DomainNet.

    The tasks are the domains in alphabetical order, each with all classes. Images are read as those of
    :class:`SplitImageFolder`.

    Args:
        root: Folder that holds ``train`` and ``test``.
        **kwargs: Arguments of :class:`SplitImageFolder`; the number of tasks is that of the domains.

    Example:
        >>> SplitDomainFolder("data/domain_net", image_size=64)  # doctest: +SKIP
    """

    name = "domain_folder"
    has_domains = True

    def __init__(self, root: str, **kwargs: Any) -> None:
        self.domains = tree_domains(root)[0]
        super().__init__(root, num_tasks=len(self.domains), **kwargs)

    def find_classes(self, root: str) -> list[str]:
        """The class names, the same in every domain."""
        return tree_domains(root)[1]

    def files(self, split: str) -> list[ImageFile]:
        """The images of a split, domain by domain."""
        return [file for domain in self.domains for file in self._files_of(split, domain)]

    def load_tasks(self, train: bool) -> Tensor:
        """The domain of each image."""
        numbers = [len(self._files_of("train" if train else "test", domain)) for domain in self.domains]
        return torch.arange(len(numbers)).repeat_interleave(torch.tensor(numbers))

    def _files_of(self, split: str, domain: str) -> list[ImageFile]:
        folder = self.domain_folder(split, domain)
        return list_images([os.path.join(folder, name) for name in self.class_names])

    def domain_folder(self, split: str, domain: str) -> str:
        """The folder of a domain, with a sub-folder per class."""
        return os.path.join(self._reader.root, split, domain)
