"""Corruptions: every domain blurred, darkened or faded more than the one before."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.data.streams.domain_stream import DomainStream
from ddn_lightning.errors import check_fraction


class Corruptions(DomainStream):
    """Domains of growing severity (after Hendrycks and Dietterich, ICLR 2019, https://arxiv.org/abs/1903.12261).

    Args:
        kind: ``contrast``, towards the mean of the image; ``brightness``, towards white; ``blur``, towards the mean of
            3x3 neighbours, repeated three times.
        severity: How far the last domain goes, from 0 to 1; the first is clean, and the others are evenly spaced
            between.
    """

    is_spaced = True

    def __init__(self, kind: Literal["contrast", "brightness", "blur"] = "contrast", severity: float = 0.8) -> None:
        check_fraction(severity=severity)
        self.kind = kind
        self.severity = severity

    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """Mix the images with their corrupted form."""
        clean = images.float()
        if self.kind == "blur":
            end = clean
            for _ in range(3):
                end = functional.avg_pool2d(end, 3, stride=1, padding=1, count_include_pad=False)
        else:
            end = clean.mean(dim=(1, 2, 3), keepdim=True) if self.kind == "contrast" else torch.full_like(clean, 255)
        return clean.lerp(end.expand_as(clean), self.severity * task / max(num_tasks - 1, 1)).round().to(torch.uint8)
