"""What callbacks and terms of the loss may ask of a method, and the facts that tables show about a class."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.progress import Progress
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.memory import Memory
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.batch_statistics import Buffers
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.samples import Samples


@dataclass(frozen=True)
class Facts:
    """What tables and titles show about a method or a distiller; each class states its own.

    Args:
        key: Name in ``configs/``, on the command line of ``ddn reproduce`` and in CSV files.
        title: Name in tables and figures.
        reference: Source, as Markdown.
        stores: What it stores besides images and labels.
        cost: Cost of a step beyond that of ER.
    """

    key: str
    title: str
    reference: str = ""
    stores: str = "nothing"
    cost: str = "none"


class Predicting(Protocol):
    """A trained method, for predictions and exports."""

    def modules(self) -> Iterator[nn.Module]:
        """All parts of the network."""

    def eval(self) -> Any:
        """Switch all parts to evaluation mode."""

    @property
    def backbone(self) -> Backbone:
        """Network from images to features."""

    @property
    def num_classes(self) -> int:
        """Number of outputs."""

    @property
    def transform(self) -> ImageTransform | None:
        """Augmentation and normalisation."""

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Channels, height and width of an image."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each class."""

    def probabilities(self, images: Tensor) -> Tensor:
        """The probability of each class (batch, num_classes), for stored images; call it in evaluation mode."""


class Watched(Predicting, Protocol):
    """A method in training, for callbacks: scores of images, stored samples, progress, and its data."""

    @property
    def trainer(self) -> Trainer:
        """The Trainer."""

    @property
    def device(self) -> torch.device:
        """The device of its weights."""

    @property
    def dtype(self) -> Any:
        """The precision of its weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters by name."""

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers by name."""

    def __call__(self, images: Tensor) -> Any:
        """Logits of normalised images."""

    def log_dict(self, dictionary: dict[str, Any], *, sync_dist: bool = False) -> None:
        """Log values."""

    def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a batch of the validation split, or of test images without one."""

    def test_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a test batch."""

    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as network inputs, not augmented."""

    @property
    def network(self) -> nn.Module:
        """Backbone and head as one module."""

    @property
    def sequence(self) -> TaskSequence:
        """The data module."""

    @property
    def progress(self) -> Progress:
        """The task, what of it is finished, and what was measured."""

    @property
    def task(self) -> int:
        """The task being trained, counted from 0."""

    @property
    def tasks_seen(self) -> int:
        """Number of tasks begun."""

    @property
    def tasks_finished(self) -> int:
        """Number of tasks whose end has run."""

    @property
    def accuracy_matrix(self) -> Tensor:
        """Accuracy in percent on each task (column) after each task (row)."""

    @property
    def task_il_matrix(self) -> Tensor:
        """The same among the classes of the sample's task."""

    @property
    def calibrated_accuracy_matrix(self) -> Tensor:
        """The same with calibrated BatchNorm statistics."""

    @property
    def streams(self) -> RandomStreams:
        """The random streams of the run."""

    @property
    def memory(self) -> Memory:
        """The memory."""

    @property
    def stores_logits(self) -> bool:
        """Whether the memory stores logits with its samples."""

    @property
    def stored_samples(self) -> Memory | ExemplarSet | None:
        """The memory or exemplars, if the method has any."""

    @property
    def terms(self) -> Sequence[Any]:
        """The terms of its loss, each a :class:`Term`."""

    @property
    def distiller(self) -> Any:
        """The :class:`LabelDistiller`, if there is one."""

    @property
    def is_growing(self) -> bool:
        """Whether the fit continues from a checkpoint of fewer tasks."""

    @property
    def current_lr(self) -> float:
        """The learning rate of the training step."""

    def before_evaluation(self) -> None:
        """Hook before each evaluation during training."""

    def note_loss(self, value: Tensor, name: str = "loss", **learning_rates: float) -> None:
        """Queue a loss for the next finiteness check, which stops training on NaN or infinity."""

    @property
    def running_buffers(self) -> Buffers | None:
        """The running statistics, while calibrated ones are in use."""

    @property
    def obstacle_to_calibration(self) -> str | None:
        """Why BatchNorm statistics cannot be calibrated, or ``None`` if they can."""

    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """The buffers that change when BatchNorm statistics are calibrated on the stored samples."""

    def calibrated(self, buffers: Buffers) -> AbstractContextManager[None]:
        """Use calibrated statistics within the context."""

    def uncalibrated(self) -> AbstractContextManager[Buffers]:
        """Use running statistics within the context; yields the calibrated ones that they replace."""


class Learner(Watched, Protocol):
    """A method in a training step, for the terms of its loss."""

    @property
    def head(self) -> nn.Module:
        """The layer from features to logits."""

    @property
    def is_seen_class(self) -> Tensor:
        """The classes seen so far (num_classes)."""

    @property
    def old_tasks(self) -> range:
        """The tasks before the current one."""

    @property
    def replay_batch_size(self) -> int:
        """Samples of a draw from memory, over all devices."""

    @property
    def moved_parameters(self) -> list[Tensor]:
        """The parameters that a training step moves."""

    def augment(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """The samples with augmented and normalised images."""

    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """Logits of a batch in the loss."""

    def draw_memory(
        self, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None, size: int | None = None
    ) -> Samples | None:
        """An augmented draw from memory; ``None`` if no sample is eligible."""

    def stored(self, slots: Tensor, generator: torch.Generator | None = None) -> Samples:
        """This rank's share of the samples in these slots of the memory, augmented."""


def is_watched(module: object) -> TypeGuard[Watched]:
    """Whether a module has what callbacks ask of a method."""
    return isinstance(getattr(module, "progress", None), Progress)


def method_of(module: object) -> Watched:
    """A module as the method that a callback needs; refuse any other module."""
    if not is_watched(module):
        raise ConfigurationError(f"this callback needs a method such as ER, got {type(module).__name__}")
    return module
