"""Permuted pixels: every domain with the pixels in another random order."""

import torch
from torch import Tensor

from ddn_lightning.data.streams.domain_stream import DomainStream


class PermutedPixels(DomainStream):
    """Domains with permuted pixels, as Permuted MNIST (Goodfellow et al. 2013, https://arxiv.org/abs/1312.6211).

    The first domain has the images as they are. Crops and mirroring make little sense here: set the data's ``padding``
    to 0 and ``flip`` to false, where it has these options.
    """

    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """Permute the pixels of every channel alike."""
        if task == 0:
            return images
        pixels = images.flatten(2)
        return pixels[..., torch.randperm(pixels.shape[2], generator=generator)].view_as(images)
