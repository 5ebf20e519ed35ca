"""The one record that flows through everything: a batch is Samples, and so is a draw from memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.distributed import moved


@dataclass(eq=False)  # not frozen: Lightning's precision plug-ins rebuild a batch field by field
class Samples:
    """Images with their labels and what is known about them.

    Under several devices this is one rank's share, and :meth:`mean` divides by the size of the whole, so that summing
    gradients over the ranks gives exactly the gradient of one device, however unequal the shares are.

    Args:
        images: Raw ``uint8`` images (batch, channels, height, width); normalised floats once augmented.
        labels: Class of each image.
        logits: Outputs stored with the sample, for methods that replay them.
        tasks: Task of each image. Stays on the host: it only selects, and asking the device would stall it.
        slots: Where in the memory a draw came from. Stays on the host as well.
        global_size: Size of the whole batch over all ranks; ``None`` when these samples are all of it.
        global_tasks: Tasks of the whole batch, on the host, if there are other ranks: to gather them would be to wait.

    Example:
        >>> samples = Samples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), labels=torch.tensor([5, 5, 8]))
        >>> len(samples), samples[samples.labels == 5].labels
        (3, tensor([5, 5]))
        >>> samples.mean(torch.tensor([1.0, 2.0, 6.0]))
        tensor(3.)
    """

    images: Tensor
    labels: Tensor
    logits: Tensor | None = None
    tasks: Tensor | None = None
    slots: Tensor | None = None
    global_size: int | None = None
    global_tasks: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> "Samples":
        on_device = index if isinstance(index, slice) else moved(index, self.labels.device)

        def select_on_host(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[index if isinstance(index, slice) else index.to(column.device)]

        return Samples(
            self.images[on_device],
            self.labels[on_device],
            None if self.logits is None else self.logits[on_device],
            select_on_host(self.tasks),
            select_on_host(self.slots),
        )

    @property
    def total(self) -> int:
        """Number of samples over all ranks."""
        return len(self) if self.global_size is None else self.global_size

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per sample over the whole batch: this rank's term of it, to be summed over the ranks."""
        return values.sum() / self.total

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Samples":
        """Move what is computed with; tasks and slots stay on the host.

        Args:
            device: Where to.
            non_blocking: Whether not to wait for the device. What goes to the host is waited for in any case.
        """

        def move(column: Tensor) -> Tensor:
            return moved(column, device) if non_blocking else column.to(device)

        logits = None if self.logits is None else move(self.logits)
        return replace(self, images=move(self.images), labels=move(self.labels), logits=logits)


def concatenate(parts: Sequence[Samples]) -> Samples:
    """One record of several; a field is kept where all parts have it.

    >>> part = Samples(torch.zeros(2, 1, 8, 8), labels=torch.tensor([0, 1]))
    >>> concatenate([part, part[:1]]).labels
    tensor([0, 1, 0])
    """

    def join(columns: Sequence[Tensor | None]) -> Tensor | None:
        known = [column for column in columns if column is not None]
        return torch.cat(known) if len(known) == len(parts) else None

    return Samples(
        torch.cat([part.images for part in parts]),
        torch.cat([part.labels for part in parts]),
        join([part.logits for part in parts]),
        join([part.tasks for part in parts]),
        join([part.slots for part in parts]),
        global_size=sum(part.total for part in parts),
    )


def cross_entropy(logits: Tensor, samples: Samples) -> Tensor:
    """Mean cross-entropy of the hard labels over the whole batch.

    >>> cross_entropy(torch.zeros(1, 2), Samples(torch.zeros(1, 1, 8, 8), labels=torch.tensor([0])))
    tensor(0.6931)
    """
    return samples.mean(functional.cross_entropy(logits, samples.labels, reduction="none"))
