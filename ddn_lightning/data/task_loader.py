"""Batches from memory: no workers, resumes in the middle of an epoch, deals each batch out over the ranks."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning.distributed import local_share, rank_and_world_size
from ddn_lightning.samples import Samples


class TaskLoader:
    """Serves samples held in memory as global batches, of which each rank gets its share.

    Args:
        samples: What to serve.
        batch_size: Size of a batch over all ranks together.
        order: Order in which to serve the samples; ``None`` for the order they are in.
        drop_last: Leave out a last batch that would be smaller than the others.
    """

    def __init__(
        self, samples: Samples, batch_size: int, *, order: Tensor | None = None, drop_last: bool = False
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.order = torch.arange(len(samples)) if order is None else order
        self.drop_last = drop_last
        self._position = 0  # batches served in this epoch
        self._resume_at = 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.order), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Samples]:
        _, world_size = rank_and_world_size()
        self._position, self._resume_at = self._resume_at, 0
        while self._position < len(self):
            start = self._position * self.batch_size
            batch = self.order[start : start + self.batch_size]
            self._position += 1
            tasks = None if self.samples.tasks is None or world_size == 1 else self.samples.tasks[batch]
            yield replace(self.samples[local_share(batch)], global_size=len(batch), global_tasks=tasks)

    def state_dict(self) -> dict[str, int]:
        """Where in the epoch we are. Lightning saves and restores it for a resume in the middle of an epoch."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration start at the saved position."""
        self._resume_at = state["position"]
