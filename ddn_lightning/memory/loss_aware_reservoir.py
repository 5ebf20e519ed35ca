"""Loss-aware reservoir: replace well-learned samples of frequent classes."""

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.distributed import take_from_first_rank
from ddn_lightning.errors import check_positive
from ddn_lightning.memory.memory import MemoryOwner
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.samples import Samples


class LossAwareReservoir(ReservoirBuffer):
    """A reservoir that chooses what to replace (LARS of Buzzega et al. 2020, https://arxiv.org/abs/2010.05595).

    A sample enters as often as in :class:`ReservoirBuffer`, but replaces one of a frequent class with a low loss rather
    than a uniform one, with a probability by the sum of both, each scaled to 1 (:func:`replacement_weights`). Losses
    are those of the current network on a few stored samples; the paper keeps those of the last replay of each, and
    scales them in another way.

    Args:
        buffer_size: Number of slots; by default the method's ``buffer_size``.
        seed: Seed of the generator behind :meth:`add` and :meth:`draw`.
        candidates: Stored samples of which one is replaced; their losses cost a forward pass.
    """

    def __init__(self, buffer_size: int | None = None, seed: int = 0, candidates: int = 50) -> None:
        check_positive(candidates=candidates)
        self.candidates = candidates
        super().__init__(buffer_size, seed)

    def choose(self, samples: Samples, method: MemoryOwner | None) -> Tensor:
        """The reservoir's choice of samples, with other slots once all are filled."""
        slots = super().choose(samples, method)
        is_replacing = (slots >= 0) & (self.seen + torch.arange(len(samples)) >= self.buffer_size)
        number = int(is_replacing.sum())
        if method is None or not 0 < number <= len(self):
            return slots
        drawn = self.draw(max(self.candidates, number))
        weights = self._weights(self[drawn], method)
        chosen = torch.multinomial(weights + 1e-6, number, generator=self.generator)
        slots[is_replacing] = drawn[chosen]
        return slots

    def _weights(self, stored: Samples, method: MemoryOwner) -> Tensor:
        network = method.network
        with evaluating(network):
            logits = network(method.normalised(stored.images))
        losses = functional.cross_entropy(logits.float(), stored.labels, reduction="none")
        counts = functional.one_hot(self.labels, method.num_classes).sum(dim=0)
        weights = replacement_weights(losses, counts[stored.labels]).nan_to_num(0)  # a divergence is reported later
        take_from_first_rank([weights])
        return weights.cpu()


def replacement_weights(losses: Tensor, class_sizes: Tensor) -> Tensor:
    """How likely each sample is to be replaced: from 0 to 1 for a low loss, plus from 0 to 1 for a frequent class.

    >>> replacement_weights(torch.tensor([0.0, 1.0, 4.0]), torch.tensor([5, 10, 10]))
    tensor([1.5000, 1.7500, 1.0000])
    """
    highest = losses.max()
    spread = (highest - losses.min()).clamp_min(torch.finfo(losses.dtype).tiny)
    return (highest - losses) / spread + class_sizes / class_sizes.max()
