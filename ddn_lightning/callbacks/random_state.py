"""Saves the global random states, which Lightning does not save."""

import random
from typing import Any

import numpy
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed

from ddn_lightning.distributed import rank_and_world_size


class RandomState(Callback):
    """Saves Python's, NumPy's and torch's global random states of every rank in the checkpoint.

    The package draws from its own generators; this is for other code, such as a backbone's dropout. A run resumed on
    another number of devices does not restore them.
    """

    def __init__(self) -> None:
        self._to_restore: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore after all random numbers that Lightning draws while it starts."""
        if self._to_restore is not None:
            _restore(self._to_restore)
            self._to_restore = None

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks. Lightning calls this on every rank and saves the first rank's value."""
        _, world_size = rank_and_world_size()
        states: list[Any] = [_current_state()]
        if world_size > 1:
            own, states = states[0], [None] * world_size
            distributed.all_gather_object(states, own)
        return {"ranks": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep this rank's state until training starts."""
        rank, world_size = rank_and_world_size()
        if len(state_dict["ranks"]) == world_size:
            self._to_restore = state_dict["ranks"][rank]


def _current_state() -> dict[str, Any]:
    numpy_state: Any = numpy.random.get_state()  # noqa: NPY002  # the global state is the point
    kind, keys, *rest = numpy_state
    return {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),  # an array would not load with weights_only
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore(state: dict[str, Any]) -> None:
    version, internal_state, next_gauss = state["python"]
    random.setstate((version, tuple(internal_state), next_gauss))
    numpy.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
