"""Writes checkpoints as a stream, and lets a Trainer read them as the rest of the package does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer

from ddn_lightning.checkpoint.reading import read_checkpoint


class CheckpointReader(TorchCheckpointIO):
    """Lightning's plug-in for checkpoints, which reads local files by :func:`read_checkpoint`.

    Remote files are left to Lightning, with ``weights_only=True``: nothing in them is executed, but their checksums
    and their size are not checked.
    """

    def load_checkpoint(
        self, path: str | Path, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint without executing anything in it, whatever ``weights_only`` says."""
        if Path(path).exists():
            return read_checkpoint(path)
        loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only=True)
        return loaded


def read_safely(trainer: Trainer) -> None:
    """Let a Trainer read checkpoints by :class:`CheckpointReader`, unless the user has given another plug-in."""
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = CheckpointReader()


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint to a file, tensor by tensor: the whole of it is in memory only once."""
    try:
        with path.open("wb") as file:
            torch.save(checkpoint, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch's error does not say why it cannot write
            raise error.__context__ from None
        raise
