"""A loader of in-memory samples: no workers, resumable within an epoch, each batch split over the ranks."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning.distributed import local_share, rank_and_world_size
from ddn_lightning.samples import Samples


class TaskLoader:
    """Splits in-memory samples into global batches, and yields this rank's share of each.

    Args:
        samples: The samples.
        batch_size: Batch size over all ranks.
        order: Permutation of the samples; ``None`` for their own order.
        drop_last: Drop a smaller last batch.
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

    def batches_within(self, limit: float) -> int:
        """How many batches a limit of the Trainer leaves, which is a share or a number."""
        return int(len(self) * limit) if isinstance(limit, float) else min(len(self), limit)

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
        """The position in the epoch, which Lightning saves and restores."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start the next iteration at the saved position."""
        self._resume_at = state["position"]
