"""The interface of a method for distillers, callbacks and memories, and the facts that tables show about a class."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ddn_lightning.batch_statistics import Buffers
from ddn_lightning.construction import Constructed
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.memory import Memory
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.classifier import Classifier
from ddn_lightning.networks.frozen_features import FrozenFeatures, is_features
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.replay_loss import ReplayLoss
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


class LabelSource(Protocol):
    """What callbacks use of a method's distiller, a :class:`LabelDistiller`."""

    streams: RandomStreams

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """A distribution over all classes for each sample."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """The learned parameters."""

    def configure_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the learned parameters, if there are any."""

    def snapshot(self) -> None:
        """Called at the end of each task."""

    def reset_slots(self, slots: Tensor) -> None:
        """Called when these slots of the memory have received new samples."""

    def training_state(self) -> dict[str, Any]:
        """What a checkpoint saves besides the weights; called on every rank."""

    def load_training_state(self, state: dict[str, Any], device: torch.device) -> None:
        """Called when training resumes."""


class Learner(Constructed, LightningModule, ABC):
    """The interface of a method; :class:`ReplayMethod` implements it.

    Methods import distillers and callbacks, which therefore refer to a method by this class.
    """

    memory_draws: ClassVar[int]  # independent draws per step; 0 for methods that do not replay
    replay_from_task: ClassVar[int]  # first task, counted from 1, in which memory is replayed
    stores_logits: ClassVar[bool]  # whether the memory stores logits with its samples
    rehearses_labels: ClassVar[bool]  # in its loss, where a distiller can soften them
    needs_disjoint_classes: ClassVar[str] = ""  # why a class must come in a single task, if it must
    lost_in_rounding: ClassVar[str] = ""  # what weights in half precision would lose, if anything

    backbone: Backbone
    head: nn.Module
    num_classes: int
    transform: ImageTransform | None
    class_names: tuple[str, ...] | None = None  # of the data that it was trained on, if they have names
    image_shape: tuple[int, ...] | None = None  # (channels, height, width)
    streams: RandomStreams
    memory: Memory
    replay_batch_size: int
    distiller: LabelSource | None
    task: int  # the task being trained, counted from 0
    tasks_finished: int  # tasks whose end_task() has run
    epochs_evaluated: int  # epochs up to and including the last evaluated one
    is_unfinished: bool = False  # whether a batch is being stored or a task ended, so that a checkpoint is torn
    is_growing: bool = False  # whether the fit goes on from a checkpoint of fewer tasks
    new_outputs: int = 0  # outputs that the checkpoint does not have
    running_buffers: Buffers | None  # running statistics, while the calibrated ones are in use
    is_seen_class: Tensor  # (num_classes)
    accuracy_matrix: Tensor
    task_il_matrix: Tensor
    calibrated_accuracy_matrix: Tensor  # measured with calibrated statistics
    test_accuracy: dict[str, list[float | None]]  # of each task after the last one, by kind; empty until opened

    @classmethod
    def takes_distiller(cls) -> bool:
        """Whether there are labels of replayed samples to soften."""
        return bool(cls.memory_draws) and cls.rehearses_labels

    @property
    @abstractmethod
    def sequence(self) -> TaskSequence:
        """The data module."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each class; its number where the data has no names, and for outputs without a class."""
        known = self.class_names or ()
        return (*known, *map(str, range(len(known), self.num_classes)))

    @abstractmethod
    def remember_modes(self) -> None:
        """Note which modules are in training mode."""

    @property
    def network(self) -> nn.Module:
        """Backbone and head as one module."""
        return Classifier(self.backbone, self.head)

    @property
    @abstractmethod
    def stored_samples(self) -> Memory | ExemplarSet | None:
        """The memory or exemplars, if the method has any."""

    @property
    def stored_form(self) -> Samples:
        """A sample in the form in which the memory holds it: with features for :class:`FrozenFeatures`."""
        is_frozen = isinstance(self.backbone, FrozenFeatures)
        shape = (self.backbone.feature_dim,) if is_frozen else self.sequence.image_shape
        images = torch.zeros(1, *shape, dtype=torch.float32 if is_frozen else torch.uint8)
        return Samples(images, labels=torch.zeros(1, dtype=torch.long), tasks=torch.zeros(1, dtype=torch.long))

    @property
    def tasks_seen(self) -> int:
        """Number of tasks begun."""
        return self.task + 1

    @property
    def old_tasks(self) -> range:
        """The tasks before the current one."""
        return range(self.task)

    @property
    @abstractmethod
    def current_lr(self) -> float:
        """The learning rate of the training step."""

    @property
    @abstractmethod
    def moved_parameters(self) -> list[Tensor]:
        """The parameters that a training step moves."""

    @property
    @abstractmethod
    def distiller_optimizer(self) -> torch.optim.Optimizer:
        """The distiller's optimizer, unwrapped: its steps must not count towards ``global_step``."""

    @abstractmethod
    def class_scores(self, images: Tensor) -> Tensor:
        """The scores (batch, num_classes) whose maximum is the prediction."""

    @abstractmethod
    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss of one step, on the incoming batch and ``memory_draws`` draws from memory."""

    def before_evaluation(self) -> None:
        """Hook before each evaluation during training."""

    @abstractmethod
    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """The training samples of an epoch."""

    @abstractmethod
    def augment(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """The samples with augmented and normalised images."""

    @abstractmethod
    def draw_memory(
        self, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None, size: int | None = None
    ) -> Samples | None:
        """An augmented draw from memory; ``None`` if no sample is eligible."""

    @abstractmethod
    def stored(self, slots: Tensor, generator: torch.Generator | None = None) -> Samples:
        """This rank's share of the samples in these slots of the memory, augmented."""

    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as network inputs, not augmented; features are only moved and converted."""
        if is_features(images):
            return images.to(self.device).to(self.dtype)
        assert self.transform is not None
        return self.transform(images.to(self.device)).to(self.dtype)

    def probabilities(self, images: Tensor) -> Tensor:
        """The probability of each class (batch, num_classes), for stored images; call it in evaluation mode."""
        return self.class_scores(self.normalised(images)).float().softmax(dim=1)

    @abstractmethod
    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """Logits of a batch in the loss."""

    def store_row(self, task: int, matrices: Mapping[str, Tensor]) -> None:
        """Write the accuracies measured after a task into the matrices of these names."""
        for name, row in matrices.items():
            self.get_buffer(name)[task] = row

    @abstractmethod
    def note_loss(self, value: Tensor, name: str = "loss", **learning_rates: float) -> None:
        """Queue a loss for the next finiteness check, which stops training on NaN or infinity."""

    @abstractmethod
    def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a test batch, for the callbacks to measure."""

    def test_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a test batch, as in :meth:`validation_step`."""
        return self.validation_step(batch, batch_index)

    @property
    @abstractmethod
    def obstacle_to_calibration(self) -> str | None:
        """Why BatchNorm statistics cannot be calibrated, or ``None`` if they can."""

    @abstractmethod
    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """The buffers that change when BatchNorm statistics are calibrated on the stored samples."""

    @abstractmethod
    def calibrated(self, buffers: Buffers) -> AbstractContextManager[None]:
        """Use calibrated statistics within the context."""

    @abstractmethod
    def uncalibrated(self) -> AbstractContextManager[Buffers]:
        """Use running statistics within the context; yields the calibrated ones that they replace."""
