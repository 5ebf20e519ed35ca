"""Reads and writes files of ``torch.save``: nothing in them is executed, in no more memory than their size."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from torch import Tensor

from ddn_lightning.errors import ConfigurationError

PICKLE = "data.pkl"  # the entry of an archive with everything except the tensors' values


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, on the CPU.

    The file must be an archive whose entries are intact, not compressed, and no larger than the file. It may contain
    tensors and plain values only.
    """
    try:
        with Path(path).open("rb") as file:
            contents = read_archive(file)
        if not isinstance(contents, dict):
            raise ValueError(f"it contains a {type(contents).__name__}")
    except Exception as error:  # zipfile, pickle and torch raise a dozen kinds on damaged files, IndexError among them
        # not "from error": torch's message advises to execute the code in the file
        raise ConfigurationError(f"{path} is damaged, or is no checkpoint: {reason_of(error)}") from None
    return contents


def read_archive(file: BinaryIO) -> Any:
    """The contents of an open file of ``torch.save``. Raises errors of any kind if it is damaged."""
    pickle_size = _check_archive(file)
    file.seek(0)
    contents = torch.load(file, map_location="cpu", weights_only=True)
    _check_contents(contents, pickle_size)
    return contents


def reason_of(error: Exception) -> str:
    """One line about the error of a damaged file."""
    reason = str(error).partition("\n")[0]
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in reason:
        return "it contains other things than tensors and plain values"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return reason or type(error).__name__


def _check_archive(file: BinaryIO) -> int:
    """Raise unless every entry of an archive is intact and as large as it is in the file; return the pickle's size."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("its entries are compressed, unlike those of torch.save")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its entries are larger than the file")
        if (damaged := archive.testzip()) is not None:  # torch does not check the checksums
            raise ValueError(f"its entry {damaged} has changed since it was written")
    return sum(entry.file_size for entry in entries if entry.filename.endswith(PICKLE))


def _check_contents(contents: Any, pickle_size: int) -> None:
    """Raise if the contents, copied without their aliases, would be larger than the file.

    A value takes at least a byte of the pickle, unless it is an alias of another one.
    """
    values, number = [contents], 0
    while values:
        value = values.pop()
        number += 1
        if number > pickle_size:
            raise ValueError("its values contain each other")
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list | tuple | set):
            values += value
        elif isinstance(value, Tensor):
            _check_tensor(value)


def _check_tensor(tensor: Tensor) -> None:
    """Raise if a tensor claims more elements than it holds; torch compares what it holds with the archive's entry."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ValueError("it contains a tensor without values or with few of them")
    if tensor.numel() * tensor.element_size() > (size := tensor.untyped_storage().nbytes()):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has only {size} bytes")


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
