"""The samples of two sequences, one after the other."""

from typing import Self

import torch
from torch import Tensor

from ddn_lightning.samples import LazySamples, Samples


class JoinedSamples(LazySamples):
    """Two sets of samples as one.

    Neither is copied, and both may be larger than memory.

    Example:
        >>> some = Samples(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), tasks=torch.tensor([0, 0]))
        >>> joined = JoinedSamples.of(some, some, torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1]))
        >>> joined[torch.tensor([1, 2])].labels
        tensor([1, 2])
    """

    _parts: tuple[Samples, Samples]

    @classmethod
    def of(cls, first: Samples, second: Samples, labels: Tensor, tasks: Tensor) -> Self:
        """The samples of both, with labels and tasks of their own."""
        joined = cls.without_images(Samples(labels, labels, tasks=tasks))
        joined._parts = first, second
        return joined

    def look_up(self, index: Tensor | slice) -> Samples:
        """Those of either part, in the order asked for."""
        assert self.tasks is not None
        if isinstance(index, Tensor) and index.dtype == torch.long:
            rows = index % len(self)
        else:
            rows = torch.arange(len(self))[index]
        is_second = rows >= len(self._parts[0])
        if is_second.all() or not is_second.any():  # as in each batch of training
            images = self._part_images(rows)
        else:
            order = is_second.int().argsort(stable=True)
            parts = [self._part_images(rows[is_second == second]) for second in (False, True)]
            images = torch.empty_like(torch.cat(parts))
            images[order] = torch.cat(parts)
        return Samples(images, self.labels[rows], tasks=self.tasks[rows])

    def _part_images(self, rows: Tensor) -> Tensor:
        """The images of rows that are all of one part."""
        first, second = self._parts
        is_second = bool(len(rows)) and int(rows[0]) >= len(first)
        return second[rows - len(first)].images if is_second else first[rows].images
