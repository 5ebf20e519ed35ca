"""The batch type of the package: incoming batches and draws from memory are both Samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.distributed import gather_shares, moved, rank_and_world_size, sum_across_ranks
from ddn_lightning.errors import ConfigurationError

Criterion = nn.Module | Callable[[Tensor, Tensor], Tensor]  # from logits and labels to the loss of each sample


@dataclass(eq=False)  # not frozen: Lightning's precision plug-ins rebuild a batch field by field
class Samples:
    """Images with labels and optional per-sample data.

    On several devices this is one rank's share. :meth:`mean` divides by the global batch size, so gradients summed over
    ranks equal those of one device, even if the shares are unequal. Choose samples of a share by :meth:`subset`, which
    counts them on all ranks; ``dataclasses.replace`` keeps the number that it finds.

    Args:
        images: Raw ``uint8`` images (batch, channels, height, width); normalised floats once augmented.
        labels: Class of each image.
        logits: Logits stored with the samples, for methods that replay them.
        tasks: Task of each image. Stays on the host, where it selects samples without a device synchronisation.
        slots: Memory slots that the samples were drawn from. Stays on the host.
        global_size: Batch size over all ranks; ``None`` if these samples are the whole batch.
        global_tasks: Tasks of the global batch, on the host, if there are several ranks; avoids a gather.
        raw: The images before augmentation, of augmented samples, for losses on a second view.
        criterion: The loss on hard labels, of augmented samples, if it is not cross-entropy.

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
    raw: Tensor | None = None
    criterion: Criterion | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> "Samples":
        if self.total != len(self):
            raise ConfigurationError(
                f"samples[...] does not know how many of all {self.total} samples are chosen, of which this rank has "
                f"{len(self)}: use samples.subset(...)"
            )
        on_device = index if isinstance(index, slice) else moved(index, self.labels.device)

        def select_on_host(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[index if isinstance(index, slice) else index.to(column.device)]

        return Samples(
            self.images[on_device],
            self.labels[on_device],
            None if self.logits is None else self.logits[on_device],
            select_on_host(self.tasks),
            select_on_host(self.slots),
            raw=None if self.raw is None else self.raw[on_device],
            criterion=self.criterion,
        )

    def subset(self, index: Tensor | slice) -> "Samples":
        """Some samples of this rank's share, with their number over all ranks; every rank must call this."""
        chosen = replace(self, global_size=None)[index]
        _, world_size = rank_and_world_size()
        if world_size == 1:
            return chosen
        (number,) = sum_across_ranks([torch.tensor([len(chosen)], device=chosen.labels.device)])
        return replace(chosen, global_size=int(number))

    @property
    def total(self) -> int:
        """Number of samples over all ranks."""
        return len(self) if self.global_size is None else self.global_size

    def mean(self, values: Tensor) -> Tensor:
        """This rank's term of the mean of ``values`` over the global batch; the terms of all ranks sum to the mean.

        The mean of an empty :meth:`subset` is 0.
        """
        return values.sum() / max(self.total, 1)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Samples":
        """Move images, labels and logits; tasks and slots stay on the host.

        Args:
            device: The target device.
            non_blocking: Whether to copy asynchronously. Copies to the host always block.
        """

        def move(column: Tensor) -> Tensor:
            return moved(column, device) if non_blocking else column.to(device)

        logits = None if self.logits is None else move(self.logits)
        return replace(self, images=move(self.images), labels=move(self.labels), logits=logits)


class LazySamples(Samples):
    """Samples whose images are looked up when needed: those of a batch, or all by ``images``.

    A subclass keeps where they are, and implements :meth:`look_up`.
    """

    @classmethod
    def without_images(cls, others: Samples) -> Self:
        """Samples with all columns of the others but their images."""
        lazy = cls(**vars(others))
        del lazy.images
        return lazy

    @cached_property
    def images(self) -> Tensor:  # type: ignore[override]  # a field of the base
        """All images, copied at the first use."""
        return self.look_up(slice(None)).images

    def __getitem__(self, index: Tensor | slice) -> Samples:
        return super().__getitem__(index) if "images" in vars(self) else self.look_up(index)

    def look_up(self, index: Tensor | slice) -> Samples:
        """The samples at an index, with their images."""
        raise NotImplementedError


class SelectedSamples(LazySamples):
    """Some of the samples, without a copy of their images.

    So a task of a dataset larger than memory can be trained on.

    Example:
        >>> whole = Samples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), labels=torch.tensor([5, 6, 7]))
        >>> SelectedSamples.of(whole, torch.tensor([2, 0]))[torch.tensor([0])].labels
        tensor([7])
    """

    _whole: Samples
    _chosen: Tensor

    @classmethod
    def of(cls, whole: Samples, chosen: Tensor) -> Self:
        """The samples at the chosen indices, in their order."""
        others = replace(whole, images=whole.labels)[chosen]  # all but the images
        selected = cls.without_images(others)
        selected._whole, selected._chosen = whole, chosen
        return selected

    def look_up(self, index: Tensor | slice) -> Samples:
        """Those of the whole."""
        return self._whole[self._chosen[index if isinstance(index, slice) else moved(index, self._chosen.device)]]


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Concatenate; an optional field is kept if all parts have it.

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
        raw=join([part.raw for part in parts]),
        criterion=parts[0].criterion,
    )


def gathered(share: Samples, logits: Tensor | None = None) -> Samples:
    """The global batch of this rank's share, with logits of the share if given."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return replace(share, logits=logits)

    def gather(column: Tensor) -> Tensor:
        return gather_shares(moved(column, share.labels.device), share.total)

    tasks = share.global_tasks
    if tasks is None and share.tasks is not None:  # from a user's own loader
        tasks = gather(share.tasks).cpu()
    return Samples(
        images=gather(share.images),
        labels=gather(share.labels),
        logits=None if logits is None else gather(logits),
        tasks=tasks,
    )


def cross_entropy(logits: Tensor, samples: Samples) -> Tensor:
    """Mean loss on the hard labels over the global batch: cross-entropy, or the criterion of the samples.

    >>> cross_entropy(torch.zeros(1, 2), Samples(torch.zeros(1, 1, 8, 8), labels=torch.tensor([0])))
    tensor(0.6931)
    """
    return samples.mean(hard_label_losses(logits, samples))


def hard_label_losses(logits: Tensor, samples: Samples) -> Tensor:
    """The loss of each sample on its hard label."""
    if samples.criterion is None:
        return functional.cross_entropy(logits, samples.labels, reduction="none")
    losses: Tensor = samples.criterion(logits, samples.labels)
    return losses
