"""Gradient-based selection: keep samples whose gradients point in different directions."""

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.distributed import take_from_first_rank
from ddn_lightning.errors import check_positive
from ddn_lightning.memory.memory import MemoryOwner
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.samples import Samples

FIRST_SCORE = 1.1  # of samples that find the memory empty: that of a cosine of 0.1, as in the authors' code


class GradientSelection(SlotBuffer):
    r"""Keeps samples whose gradients differ (greedy GSS, Aljundi et al., NeurIPS 2019, https://arxiv.org/abs/1903.08671).

    The score of a sample is one plus the largest cosine of its gradient g with those of a few stored samples,

    .. math:: c(x) = 1 + \max_i \frac{g(x)^\top g(x_i)}{\|g(x)\| \|g(x_i)\|}.

    Once the memory is full, a sample with a score below 1 may replace a stored one with a high score. Gradients are
    those of the last layer's weights only, in evaluation mode, by their outer products, as if it were linear where it
    has cosines; the paper takes those of all parameters. Samples of a batch are scored together, against the memory
    before it, and admitted one by one as in the paper's Algorithm 2, where the authors' code first asks whether the
    gradient of the whole batch differs.

    Args:
        buffer_size: Number of slots; by default the method's ``buffer_size``.
        seed: Seed of the generator behind :meth:`add` and :meth:`draw`.
        comparisons: Number of stored samples to compare with. Published: 10.
    """

    def __init__(self, buffer_size: int | None = None, seed: int = 0, comparisons: int = 10) -> None:
        check_positive(comparisons=comparisons)
        self.comparisons = comparisons
        super().__init__(buffer_size, seed)

    def clear(self) -> None:
        """Remove all samples and scores."""
        super().clear()
        self.scores = torch.zeros(self.buffer_size, dtype=torch.float64)

    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """Free slots first; then those of random samples with high scores (Algorithm 2)."""
        own = self._scores_of(samples, method)
        slots = torch.arange(len(self), len(self) + len(samples))
        is_late = slots >= self.buffer_size
        if is_late.any():
            number, late = int(is_late.sum()), own[is_late]
            victims = torch.multinomial(self.scores + 1e-9, number, replacement=True, generator=self.generator)
            chance = torch.rand(number, generator=self.generator, dtype=torch.float64)
            is_better = (late < 1) & (chance * (self.scores[victims] + late) < self.scores[victims])
            slots[is_late] = victims.where(is_better, -1)
        self.scores[slots[slots >= 0]] = own[slots >= 0]
        return slots

    def _scores_of(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """The scores of new samples, on the host; without a method all are the same."""
        if method is None:
            return torch.ones(len(samples), dtype=torch.float64)
        if not len(self):
            return torch.full((len(samples),), FIRST_SCORE, dtype=torch.float64)
        others = self[self.draw(self.comparisons)]
        (features, errors), (other_features, other_errors) = (_directions(part, method) for part in (samples, others))
        cosines = ((features @ other_features.T) * (errors @ other_errors.T)).amax(dim=1)
        scores = (1 + cosines.double()).nan_to_num(0).clamp_min(0)
        take_from_first_rank([scores])
        return scores.cpu()


def _directions(samples: Samples, method: MemoryOwner) -> tuple[Tensor, Tensor]:
    """The factors of each sample's gradient by the last layer's weights, of length one: features and errors."""
    network = method.network
    with evaluating(network):
        features = network.get_submodule("backbone")(method.normalised(samples.images))
        errors = network.get_submodule("head")(features).softmax(dim=1)
    errors = errors - functional.one_hot(samples.labels, method.num_classes)
    return functional.normalize(features), functional.normalize(errors)
