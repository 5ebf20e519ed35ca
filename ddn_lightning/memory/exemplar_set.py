"""Exemplar memory: equally many samples of each class, the best first, chosen at a task's end."""

from typing import Any

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint import checks
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.samples import Samples, concatenate


class ExemplarSet(nn.Module):
    """Keeps the first ``buffer_size // classes`` samples of every class, in the order in which they were ranked.

    The exemplar set of iCaRL (https://arxiv.org/abs/1611.07725). As classes come, every class shrinks to its new share;
    since the ranking is kept, what remains is what would have been chosen for the smaller share. The samples stay on
    the host, like the data that they are merged with, and are part of the method's weights: they come back from
    checkpoints and forked processes.

    Args:
        buffer_size: Samples of all classes together.

    Example:
        >>> exemplars = ExemplarSet(buffer_size=5)
        >>> labels = torch.tensor([0, 1, 0, 1, 0, 1])
        >>> exemplars.store(Samples(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), labels), num_classes=2)
        >>> exemplars.samples.labels
        tensor([0, 0, 1, 1])
    """

    def __init__(self, buffer_size: int) -> None:
        super().__init__()
        check_positive(buffer_size=buffer_size)
        self.buffer_size = buffer_size
        self._samples: Samples | None = None

    def __len__(self) -> int:
        return 0 if self._samples is None else len(self._samples)

    def __getitem__(self, places: Tensor) -> Samples:
        return self.samples[places]

    @property
    def slots(self) -> Tensor:
        """The places of all exemplars."""
        return torch.arange(len(self))

    @property
    def labels(self) -> Tensor:
        """Their classes."""
        return self.samples.labels

    @property
    def samples(self) -> Samples:
        """All exemplars, class by class, each class's best first."""
        if self._samples is None:
            raise ValueError("there are no exemplars before the first task has ended")
        return self._samples

    def store(self, ranked: Samples, num_classes: int) -> None:
        """Take in samples of new classes and shrink the old ones.

        Args:
            ranked: Samples of new classes, those of each class in order of preference.
            num_classes: Number of classes to share the memory, old and new.
        """
        share = self.buffer_size // num_classes
        offered = ranked if self._samples is None else concatenate([self._samples, ranked])
        kept = offered[rank_in_class(offered.labels) < share]
        kept = kept[kept.labels.argsort(stable=True)]
        if len(kept) > self.buffer_size:
            raise ValueError(f"expected samples of at most num_classes = {num_classes} classes, got more")
        self._samples = kept if len(kept) else None

    def clear(self) -> None:
        """Hold nothing."""
        self._samples = None

    def get_extra_state(self) -> dict[str, Any]:
        """The exemplars; loads with ``weights_only=True``."""
        held = {} if self._samples is None else {"images": self._samples.images, "labels": self._samples.labels}
        if self._samples is not None and self._samples.tasks is not None:
            held["tasks"] = self._samples.tasks
        return {"buffer_size": self.buffer_size, "contents": held}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over a saved set of the same size."""
        checks.mapping("exemplars", state, ("buffer_size", "contents"))
        if state["buffer_size"] != self.buffer_size:
            raise ConfigurationError(
                f"buffer_size is {self.buffer_size}, but the checkpoint's memory has {state['buffer_size']} slots"
            )
        contents = checks.mapping("exemplars/contents", state["contents"])
        self._samples = self._checked(contents) if contents else None

    def _checked(self, contents: dict[str, Any]) -> Samples:
        """Images, labels and perhaps tasks, as many of each, and no more than there is room for."""
        checks.mapping("exemplars/contents", contents, ("images", "labels"))
        labels = checks.tensor("exemplars/contents/labels", contents["labels"], torch.int64, (None,), least=0).cpu()
        checks.integer("exemplars/number of labels", len(labels), 1, self.buffer_size)
        images = contents["images"]
        if not isinstance(images, Tensor) or images.shape[:1] != labels.shape:
            checks.refuse("exemplars/contents/images", f"{len(labels)} images", images)
        tasks = contents.get("tasks")
        if tasks is not None:
            tasks = checks.tensor("exemplars/contents/tasks", tasks, torch.int64, labels.shape, least=0).cpu()
        return Samples(images.cpu(), labels, tasks=tasks)


def rank_in_class(labels: Tensor) -> Tensor:
    """How many samples of its own class stand before each sample.

    >>> rank_in_class(torch.tensor([7, 2, 7, 7, 2]))
    tensor([0, 0, 1, 2, 1])
    """
    order = labels.argsort(stable=True)
    by_class = labels[order]
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels), device=labels.device) - torch.searchsorted(
        by_class, by_class
    )  # less the place of the first
    return ranks


@torch.no_grad()
def herding(features: Tensor, number: int) -> Tensor:
    """Choose samples of one class whose mean is near the mean of all, one after another (Algorithm 4 of iCaRL).

    The next is always the one that brings the mean of those chosen nearest to the mean of all, so that every beginning
    of the order is a good choice too. Expanding the squared distance leaves one matrix-vector product per choice.

    Args:
        features: Features of all samples (samples, feature_dim).
        number: How many to choose; fewer if there are not as many.

    Returns:
        Indices of the samples, the best first.
    """
    features = features.double().cpu()  # the expansion cancels, and a tie broken otherwise would be another memory
    mean = features.mean(dim=0)
    squares = features.square().sum(dim=1)
    is_chosen = torch.zeros(len(features), dtype=torch.bool)
    chosen: list[int] = []
    missing = torch.zeros_like(mean)  # what the sum of those chosen lacks to be as many times the mean
    for _ in range(min(number, len(features))):
        missing += mean
        cost = squares - 2 * features @ missing
        chosen.append(int(cost.masked_fill(is_chosen, torch.inf).argmin()))
        is_chosen[chosen[-1]] = True
        missing -= features[chosen[-1]]
    return torch.tensor(chosen, dtype=torch.long)
