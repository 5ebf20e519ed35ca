"""Maximally Interfered Retrieval: replay what the incoming batch would hurt most."""

from typing import Any

import torch

from ddn_lightning.distill.hypergradient import FrozenNetwork
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distributed import gather_shares
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.methods.er import ER
from ddn_lightning.samples import Samples, hard_label_losses

CANDIDATES = 50  # published


class MIR(ER):
    r"""MIR (Aljundi et al., NeurIPS 2019, https://arxiv.org/abs/1908.04742).

    Adds to Experience Replay the choice of what to replay: of ``candidates`` random samples, those whose loss would
    rise most by a step on the incoming batch B alone, their score S_MI-1,

    .. math:: \ell(f_{\theta'}(x), y) - \ell(f_\theta(x), y), \qquad \theta' = \theta - \eta \nabla L_B(\theta).

    BatchNorm uses the statistics of each batch and does not update them. Needs neither task boundaries nor additional
    storage. Readings: candidates are of all tasks, where the authors' code leaves out the current one; what is chosen
    is augmented anew, where theirs replays the images that it has scored; and in theirs the candidates' first pass
    updates the running statistics.

    Args:
        candidates: Samples drawn at random, of which ``replay_batch_size`` are replayed. Published: 50, of which 10 are
            replayed.
        **kwargs: Arguments of :class:`ER`.
    """

    facts = Facts(
        key="mir",
        title="MIR",
        reference="[Aljundi et al. 2019](https://arxiv.org/abs/1908.04742)",
        cost="a gradient of the incoming batch, 2 forward passes of 50 candidates",
    )

    def __init__(self, *args: Any, candidates: int = CANDIDATES, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if candidates < self.replay_batch_size:
            raise ConfigurationError(
                f"candidates must be at least replay_batch_size = {self.replay_batch_size}, got {candidates}"
            )
        self.candidates = candidates

    def retrieve(self, current: Samples) -> list[Samples]:
        """The candidates whose loss rises most."""
        slots = self.memory.draw(self.candidates)
        if not len(slots):
            return []
        drawn = self.stored(slots)
        network = FrozenNetwork(self.network, self.moved_parameters)
        now = {name: p for name, p in self.network.named_parameters() if name in network.parameters}
        _, gradients = self.gradient_of([lambda: network.loss(now, [current])], list(now.values()))
        steps = zip(now.items(), gradients, strict=True)
        with torch.no_grad():
            ahead = {name: p if gradient is None else p - self.current_lr * gradient for (name, p), gradient in steps}
            before, after = (hard_label_losses(network(p, drawn.images), drawn) for p in (now, ahead))
        rise = gather_shares(after - before, len(slots))  # over all ranks
        chosen = rise.topk(min(self.replay_batch_size, len(slots))).indices.cpu()
        return [self.stored(slots[chosen])]
