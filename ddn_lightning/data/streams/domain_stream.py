"""Domain-incremental streams: the same samples in every task, with images that differ by task."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.data.plan import Plan
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.errors import check_finite, check_fraction


class DomainStream(Stream):
    """All samples and classes in every task, with images that differ by task: the *domains*.

    ``num_tasks`` is the number of domains. Train and test images are changed alike. Where another stream moves
    samples between tasks, each keeps the image of its domain. A stream implements :meth:`change_images`; it is called
    for each batch, so that no domain is copied into memory.
    """

    has_disjoint_classes = False
    is_by_domain = True

    def change(self, plan: Plan, generator: torch.Generator) -> Plan:
        """Repeat all samples in every task."""
        return self.change_test(plan)

    def change_test(self, plan: Plan) -> Plan:
        """Repeat all samples in every task."""
        num_tasks = len(plan.is_class_of_task)
        tasks = torch.arange(num_tasks).repeat_interleave(len(plan))
        samples, labels = plan.samples.repeat(num_tasks), plan.labels.repeat(num_tasks)
        return replace(plan, samples=samples, labels=labels, tasks=tasks, domains=tasks)

    @abstractmethod
    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """The images of a domain, from raw ``uint8`` ones."""


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


class RotatedImages(DomainStream):
    """Domains at growing angles, as Rotated MNIST (Lopez-Paz and Ranzato 2017, https://arxiv.org/abs/1706.08840).

    Args:
        degrees: Angle of the last domain; the first is upright, and the others are evenly spaced between.
    """

    is_spaced = True

    def __init__(self, degrees: float = 180.0) -> None:
        check_finite(degrees=degrees)
        self.degrees = degrees

    def change_images(self, images: Tensor, task: int, num_tasks: int, generator: torch.Generator) -> Tensor:
        """Rotate about the centre, with black corners."""
        angle = math.radians(self.degrees * task / max(num_tasks - 1, 1))
        height, width = images.shape[-2:]
        cosine, sine, ratio = math.cos(angle), math.sin(angle), height / width
        matrix = torch.tensor([[cosine, -sine * ratio, 0.0], [sine / ratio, cosine, 0.0]])
        size = [len(images), *images.shape[1:]]
        grid = functional.affine_grid(matrix.expand(len(images), -1, -1), size, align_corners=False)
        return functional.grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)


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
