"""Maximally Interfered Retrieval, as a user would write it."""

from typing import Any

import torch
from torch.nn import functional

from ddn_lightning import ER, FrozenNetwork, Samples, gather_shares


class MIR(ER):
    """Replays what the incoming batch would hurt most (Aljundi et al. 2019, https://arxiv.org/abs/1908.04742).

    Args:
        candidates: Samples drawn at random, of which ``replay_batch_size`` are replayed.
        **kwargs: Arguments of :class:`ER`.
    """

    def __init__(self, *args: Any, candidates: int = 50, replay_batch_size: int = 10, **kwargs: Any) -> None:
        super().__init__(*args, replay_batch_size=replay_batch_size, **kwargs)
        self.candidates = candidates

    def retrieve(self, current: Samples) -> list[Samples]:
        slots = self.memory.draw(self.candidates)
        if not len(slots):
            return []
        drawn = self.stored(slots)
        network = FrozenNetwork(self.network)
        now = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        _, gradients = self.gradient_of([lambda: network.loss(now, [current])], list(now.values()))
        with torch.no_grad():
            ahead = {name: p - self.current_lr * g for (name, p), g in zip(now.items(), gradients, strict=True)}
            before, after = (
                functional.cross_entropy(network(p, drawn.images), drawn.labels, reduction="none") for p in (now, ahead)
            )
        rise = gather_shares(after - before, len(slots))  # over all ranks
        chosen = rise.topk(min(self.replay_batch_size, len(slots))).indices.cpu()
        return [self.stored(slots[chosen])]
