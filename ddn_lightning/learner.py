"""What distillers, callbacks and whoever else extends a method may ask of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

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
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples


class LabelSource(Protocol):
    """What callbacks may ask of a method's distiller, a :class:`LabelDistiller`."""

    streams: RandomStreams

    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """A distribution over all classes for each sample."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """What it learns."""

    def configure_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of what is learned, if anything is."""

    def snapshot(self) -> None:
        """A task has ended."""

    def reset_slots(self, slots: Tensor) -> None:
        """These slots of the memory hold other samples now."""


class Learner(Constructed, LightningModule, ABC):
    """The interface of a method, below everything that works with one; :class:`ReplayMethod` implements it.

    Distillers and callbacks are arguments and helpers of a method, so methods import them. They know it by this class.
    """

    memory_draws: ClassVar[int]  # independent draws per step; 0 for a method without reservoir
    replay_from_task: ClassVar[int]  # the first task, counted from 0, in which memory is replayed
    stores_logits: ClassVar[bool]  # whether the memory keeps the outputs of what it stores

    backbone: Backbone
    head: nn.Module
    num_classes: int
    transform: ImageTransform | None
    streams: RandomStreams
    memory: Memory
    replay_batch_size: int
    distiller: LabelSource | None
    task: int  # the task being trained, counted from 0
    tasks_finished: int  # tasks whose end_task() is done
    epochs_evaluated: int  # epochs up to and including the last one that was followed by an evaluation
    running_buffers: Buffers | None  # those of training, while the calibrated ones are in their place
    is_seen_class: Tensor  # (num_classes)
    accuracy_matrix: Tensor
    task_il_matrix: Tensor
    calibrated_accuracy_matrix: Tensor  # measured with BatchNorm statistics of the memory

    @property
    @abstractmethod
    def sequence(self) -> TaskSequence:
        """The data module that says which task it is."""

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """Backbone and head as one module, without anything else that the method may have."""

    @property
    @abstractmethod
    def stored_samples(self) -> Memory | ExemplarSet | None:
        """Where samples of tasks that have ended are kept, if anywhere."""

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
    def distiller_optimizer(self) -> torch.optim.Optimizer:
        """The distiller's, not wrapped by Lightning: its steps are not to be counted a second time."""

    @abstractmethod
    def class_scores(self, images: Tensor) -> Tensor:
        """The scores (batch, num_classes) whose maximum is the prediction."""

    @abstractmethod
    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss of one step. All images are augmented and normalised.

        Args:
            current: The incoming batch.
            *memory: As many draws from memory as ``memory_draws``, none of them empty.
        """

    @abstractmethod
    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """What to train on in an epoch."""

    @abstractmethod
    def augment(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """The samples with augmented and normalised images."""

    @abstractmethod
    def draw_memory(
        self,
        tasks: Iterable[int] | None = None,
        generator: torch.Generator | None = None,
        size: int | None = None,
    ) -> Samples | None:
        """An augmented draw from memory, or ``None`` if there is nothing to draw."""

    @abstractmethod
    def stored(self, slots: Tensor, generator: torch.Generator | None = None) -> Samples:
        """What these slots of the memory hold, augmented: this rank's share of it."""

    @abstractmethod
    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as the network takes them, not augmented."""

    @abstractmethod
    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """Logits of a batch in the loss."""

    @abstractmethod
    def store_row(self, task: int, matrices: Mapping[str, Tensor]) -> None:
        """Take a row of accuracies, measured after a task, into the matrices of these names."""

    @abstractmethod
    def note_loss(self, value: Tensor, what: str = "loss", **learning_rates: float) -> None:
        """Note a loss to be looked at later: training stops if it is not finite."""

    @abstractmethod
    def validation_step(self, batch: Samples, batch_index: int) -> Tensor:
        """Scores of a test batch, for the callbacks to measure."""

    @abstractmethod
    def test_step(self, batch: Samples, batch_index: int) -> Tensor:
        """The same as validation."""

    @property
    @abstractmethod
    def obstacle_to_calibration(self) -> str | None:
        """Why there is nothing to calibrate, or nothing to calibrate with."""

    @abstractmethod
    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """All that is different when BatchNorm statistics are those of the stored samples."""

    @abstractmethod
    def calibrated(self, buffers: Buffers) -> AbstractContextManager[None]:
        """Predict with calibrated statistics for a while."""

    @abstractmethod
    def uncalibrated(self) -> AbstractContextManager[Buffers]:
        """Predict with the running statistics for a while; gives those that were in their place, if any."""
