"""What a run has looked like at the end of its tasks: tensors, and the file that holds them."""

import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ddn_lightning.files import replacing

OBSERVATIONS_FILE = "observations.npz"


@dataclass(frozen=True, eq=False)
class Observed:
    """What is known about the predictions and the memory of a run; ``None`` where nothing is.

    Args:
        task_classes: Classes of each task (tasks, classes per task).
        confusion: Test images by true class (rows) and predicted class, when last measured.
        probability: Mean predicted probabilities of each true class (rows), when last measured.
        composition: Samples of each class in memory after each task (tasks, classes); -1 where it has not ended.
        soft_labels: Mean soft label of each class in memory (tasks, classes, classes); ``nan`` where there is none.
        label_entropy: Mean entropy of the soft labels in nats (tasks); ``nan`` where there are none.
        sample_images: Some images of the memory, raw (samples, channels, height, width).
        sample_labels: Their classes.
        sample_soft_labels: Their soft labels (samples, classes).
    """

    task_classes: Tensor
    confusion: Tensor | None = None
    probability: Tensor | None = None
    composition: Tensor | None = None
    soft_labels: Tensor | None = None
    label_entropy: Tensor | None = None
    sample_images: Tensor | None = None
    sample_labels: Tensor | None = None
    sample_soft_labels: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes of the whole sequence."""
        return self.task_classes.numel()

    def tensors(self) -> dict[str, Tensor]:
        """What is there, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def save_observed(observed: Observed, folder: Path) -> None:
    """Write the file of a run."""
    with replacing(folder / OBSERVATIONS_FILE) as partial, partial.open("wb") as file:
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in observed.tensors().items()}
        numpy.savez_compressed(file, **arrays)


def load_observed(folder: Path) -> Observed | None:
    """Read the file of a run, or ``None`` if there is none.

    Raises:
        ValueError: If it is damaged, or holds something else.
    """
    path = folder / OBSERVATIONS_FILE
    if not path.is_file():
        return None
    try:
        with numpy.load(path, allow_pickle=False) as file:
            tensors = {name: torch.from_numpy(file[name]) for name in file.files}
        observed = Observed(**tensors)
    except (OSError, ValueError, TypeError, EOFError, LookupError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    _check_shapes(observed)
    return observed


def _check_shapes(observed: Observed) -> None:
    if observed.task_classes.dim() != 2 or observed.task_classes.numel() == 0:
        raise ValueError(f"{OBSERVATIONS_FILE} must hold classes by task, got {tuple(observed.task_classes.shape)}")
    tasks, classes = len(observed.task_classes), observed.num_classes
    samples = 0 if observed.sample_labels is None else observed.sample_labels.numel()
    expected = {
        "confusion": (classes, classes),
        "probability": (classes, classes),
        "composition": (tasks, classes),
        "soft_labels": (tasks, classes, classes),
        "label_entropy": (tasks,),
        "sample_labels": (samples,),
        "sample_soft_labels": (samples, classes),
    }
    for name, tensor in observed.tensors().items():
        shape = tuple(tensor.shape)
        if name == "sample_images":
            is_fitting = len(shape) == 4 and shape[0] == samples and shape[1] in (1, 3)
        else:
            is_fitting = name not in expected or shape == expected[name]
        if not is_fitting:
            raise ValueError(
                f"{OBSERVATIONS_FILE} holds {name} of shape {shape}, not {expected.get(name, 'of images')}"
            )
