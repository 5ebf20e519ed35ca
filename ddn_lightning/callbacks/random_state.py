"""Saves the global random states, which Lightning does not."""

import random
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class RandomState(Callback):
    """Keeps Python's and torch's global random states in the checkpoint.

    The package draws from generators of its own; this is for what it does not know about, such as a backbone's dropout.
    """

    def __init__(self) -> None:
        self._to_restore: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore late, after everything that Lightning draws while it starts."""
        if self._to_restore is None:
            return
        version, internal_state, next_gauss = self._to_restore["python"]
        random.setstate((version, tuple(internal_state), next_gauss))
        torch.set_rng_state(self._to_restore["torch"].cpu())
        if torch.cuda.is_available() and len(self._to_restore["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([state.cpu() for state in self._to_restore["cuda"]])
        self._to_restore = None

    def state_dict(self) -> dict[str, Any]:
        """The states as they are."""
        return {
            "python": random.getstate(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the states until training starts."""
        self._to_restore = state_dict
