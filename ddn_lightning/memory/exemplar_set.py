"""Exemplar memory: equally many samples of each class, in order of preference, chosen at a task's end."""

from typing import Any

import torch
from torch import Tensor, nn

from ddn_lightning.checkpoint import checks
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.memory.memory import size_in_bytes
from ddn_lightning.samples import Samples, concatenate


class ExemplarSet(nn.Module):
    """Keeps the first ``buffer_size // classes`` samples of each class, in their ranking.

    The exemplar set of iCaRL (https://arxiv.org/abs/1611.07725). New classes shrink the share of the old ones, which
    drop their last-ranked samples. The samples stay on the host, like the data that they are merged with, and are part
    of the state dict, so that checkpoints and forked processes return them.

    Args:
        buffer_size: Number of samples over all classes.

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

    def __getitem__(self, slots: Tensor) -> Samples:
        return self.samples[slots]

    @property
    def slots(self) -> Tensor:
        """The indices of all exemplars."""
        return torch.arange(len(self))

    @property
    def labels(self) -> Tensor:
        """Classes of the exemplars."""
        return self.samples.labels

    @property
    def samples(self) -> Samples:
        """All exemplars, ordered by class and rank."""
        if self._samples is None:
            raise ValueError("there are no exemplars before the first task has ended")
        return self._samples

    def store(self, ranked: Samples, num_classes: int) -> None:
        """Add samples of new classes and shrink the old ones.

        Args:
            ranked: Samples of new classes, those of each class in order of preference.
            num_classes: Number of old and new classes.
        """
        share = self.buffer_size // num_classes
        offered = ranked if self._samples is None else concatenate([self._samples, ranked])
        kept = offered[rank_in_class(offered.labels) < share]
        kept = kept[kept.labels.argsort(stable=True)]
        if len(kept) > self.buffer_size:
            raise ValueError(f"expected samples of at most num_classes = {num_classes} classes, got more")
        self._samples = kept if len(kept) else None

    def full_bytes(self, form: Samples) -> int:
        """Bytes of the full set, for a budget in bytes; ``form`` is one sample as it is stored."""
        return self.buffer_size * size_in_bytes(vars(form))

    def clear(self) -> None:
        """Remove all exemplars."""
        self._samples = None

    def get_extra_state(self) -> dict[str, Any]:
        """The exemplars; loads with ``weights_only=True``."""
        contents = {} if self._samples is None else {"images": self._samples.images, "labels": self._samples.labels}
        if self._samples is not None and self._samples.tasks is not None:
            contents["tasks"] = self._samples.tasks
        return {"buffer_size": self.buffer_size, "contents": contents}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore a set of the same size."""
        checks.mapping("exemplars", state, ("buffer_size", "contents"))
        if state["buffer_size"] != self.buffer_size:
            raise ConfigurationError(
                f"buffer_size is {self.buffer_size}, but the checkpoint's memory has {state['buffer_size']} slots"
            )
        contents = checks.mapping("exemplars/contents", state["contents"])
        self._samples = self._checked(contents) if contents else None

    def _checked(self, contents: dict[str, Any]) -> Samples:
        """Check the number, type and range of images, labels and tasks."""
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
    """Number of samples of the same class before each sample.

    >>> rank_in_class(torch.tensor([7, 2, 7, 7, 2]))
    tensor([0, 0, 1, 2, 1])
    """
    order = labels.argsort(stable=True)
    by_class = labels[order]
    first = torch.searchsorted(by_class, by_class)  # index of the first sample of the class
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels), device=labels.device) - first
    return ranks


@torch.no_grad()
def herding(features: Tensor, number: int) -> Tensor:
    """Greedily choose samples of one class whose mean approximates the mean of all (Algorithm 4 of iCaRL).

    Each choice brings the mean of the chosen samples nearest to the mean of all, so every prefix of the order is a good
    choice too. Expanding the squared distance leaves one matrix-vector product per choice.

    Args:
        features: Features of all samples (samples, feature_dim).
        number: Number to choose; fewer if there are not as many.

    Returns:
        Indices of the samples in order of preference.
    """
    features = features.double().cpu()  # the expansion cancels digits, and rounding would decide between samples
    mean = features.mean(dim=0)
    squares = features.square().sum(dim=1)
    is_chosen = torch.zeros(len(features), dtype=torch.bool)
    chosen: list[int] = []
    missing = torch.zeros_like(mean)  # number of chosen samples times the mean, minus their sum
    for _ in range(min(number, len(features))):
        missing += mean
        cost = squares - 2 * features @ missing
        chosen.append(int(cost.masked_fill(is_chosen, torch.inf).argmin()))
        is_chosen[chosen[-1]] = True
        missing -= features[chosen[-1]]
    return torch.tensor(chosen, dtype=torch.long)
