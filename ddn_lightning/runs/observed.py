"""Observations of a run at task ends: tensors, and the file that stores them."""

import io
import math
import zipfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.runs.files import atomic_write

OBSERVATIONS_FILE = "observations.npz"
MISSING = {  # what stands for tasks and classes that were not observed
    **dict.fromkeys(("composition", "memory_tasks"), -1),
    **dict.fromkeys(("soft_labels", "label_entropy"), math.nan),
    **dict.fromkeys(("confusion", "probability", "sample_soft_labels"), 0),
}
MOST_BYTES = 2**30  # limit for all arrays, unpacked; a run of a thousand classes has far less


@dataclass(frozen=True, eq=False)
class Observed:
    """Predictions at the last evaluation and memory of a run; ``None`` for what was not observed."""

    is_class_of_task: Tensor  # (tasks, classes)
    stream: Tensor | None = None  # training samples by label over time (moments, classes), equally many moments a task
    confusion: Tensor | None = None  # test images by true class (rows) and predicted class
    probability: Tensor | None = None  # mean predicted probabilities of each true class (rows)
    composition: Tensor | None = None  # samples in memory after each task (tasks, classes); -1 for unfinished tasks
    memory_tasks: Tensor | None = None  # the same by their task (tasks, tasks), if a class comes in several tasks
    soft_labels: Tensor | None = None  # mean soft label of each class in memory (tasks, classes, classes), or nan
    label_entropy: Tensor | None = None  # mean entropy of the soft labels in nats (tasks), or nan
    sample_images: Tensor | None = None  # some raw images of the memory (samples, channels, height, width)
    sample_labels: Tensor | None = None
    sample_soft_labels: Tensor | None = None  # (samples, classes)

    @property
    def num_classes(self) -> int:
        """Number of classes of the whole sequence."""
        return self.is_class_of_task.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are not ``None``, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def expected_shapes(is_class_of_task: Tensor, samples: int | None) -> dict[str, tuple[int | None, ...]]:
    """The shape of each tensor of an :class:`Observed`; ``None`` where any length is valid."""
    tasks, classes = is_class_of_task.shape
    return {
        "is_class_of_task": (tasks, classes),
        "stream": (None, classes),
        "confusion": (classes, classes),
        "probability": (classes, classes),
        "composition": (tasks, classes),
        "memory_tasks": (tasks, tasks),
        "soft_labels": (tasks, classes, classes),
        "label_entropy": (tasks,),
        "sample_images": (samples, None, None, None),
        "sample_labels": (samples,),
        "sample_soft_labels": (samples, classes),
    }


def grown(observed: Observed, is_class_of_task: Tensor, stream: Tensor | None) -> Observed:
    """The observations of a finished run, for all tasks and classes of a sequence that follows it."""
    labels = observed.sample_labels
    shapes = expected_shapes(is_class_of_task, None if labels is None else len(labels))
    values = {}
    for name, missing in MISSING.items():
        if (tensor := getattr(observed, name)) is not None:
            shape = [len(tensor) if size is None else size for size in shapes[name]]
            if tensor.dim() > 1:  # what was counted has none of the new classes
                tensor = resized(tensor, (*tensor.shape[:-1], shape[-1]))
            values[name] = resized(tensor, shape, missing)
    return replace(observed, **values, is_class_of_task=is_class_of_task, stream=stream)


def save_observed(observed: Observed, folder: Path) -> None:
    """Write the file to a run folder."""
    with atomic_write(folder / OBSERVATIONS_FILE) as partial, partial.open("wb") as file:
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in observed.tensors().items()}
        numpy.savez_compressed(file, **arrays)


def parse_observed(content: bytes) -> Observed:
    """Parse the file. A damaged one raises an error of almost any type, before it allocates memory."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_sizes(archive)
    with numpy.load(io.BytesIO(content), allow_pickle=False) as file:
        tensors = {name: torch.from_numpy(file[name]) for name in file.files}
    return Observed(**tensors)


def _check_sizes(archive: zipfile.ZipFile) -> None:
    """Refuse arrays that claim to be larger than their stored bytes."""
    if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
        raise ValueError(f"its arrays must not take more than {MOST_BYTES} bytes")
    for member in archive.infolist():
        with archive.open(member) as file:
            version = numpy.lib.format.read_magic(file)
            shape, _, dtype = (
                numpy.lib.format.read_array_header_1_0(file)
                if version == (1, 0)
                else numpy.lib.format.read_array_header_2_0(file)
            )
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} is not as large as its shape {shape}")
