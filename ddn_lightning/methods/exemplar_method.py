"""The base class of methods that train on exemplars as data."""

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.callbacks.task_progress_bar import track
from ddn_lightning.checkpoint.checks import check_samples
from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.core.growth import grow_head
from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.lightning_internals import has_trainer
from ddn_lightning.memory.exemplar_set import ExemplarSet, herding
from ddn_lightning.networks.frozen_features import stored_form
from ddn_lightning.optimization import evaluating
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, concatenate


class ExemplarMethod(ReplayMethod):
    """Trains on each task's data merged with exemplars of old classes, and keeps the network of the previous task.

    Exemplars are chosen among all data of a task at its end, also in the online setting, as in the code that the DDN
    paper builds on. A method implements :meth:`current_loss` and may override :meth:`end_task`. Predictions are limited
    to the classes seen.

    Args:
        **kwargs: Arguments of :class:`ReplayMethod`. There is no replayed batch: ``replay_batch_size`` is the batch
            size of the work at a task's end. ``mask_unseen`` is always on.
    """

    memory_draws = 0
    rehearses_labels = False
    needs_disjoint_classes = "it chooses exemplars of a class, and tells old from new classes, when its task ends"
    is_old_class: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mask_unseen = True
        self._check_buffer_size()
        self.exemplars = ExemplarSet(self.buffer_size)
        self.old_network = copy.deepcopy(self.network).requires_grad_(False)
        self.register_buffer("is_old_class", torch.zeros(self.num_classes, dtype=torch.bool))

    def resize(self, buffer_size: int) -> None:
        """Change the number of exemplars."""
        super().resize(buffer_size)
        self.exemplars.buffer_size = buffer_size

    def setup(self, stage: str) -> None:
        """Refuse ``buffer_bytes`` with room for too few exemplars."""
        super().setup(stage)
        self._check_buffer_size()

    def _check_buffer_size(self) -> None:
        if self.buffer_size < self.num_classes:
            raise ConfigurationError(
                f"buffer_size must be at least num_classes = {self.num_classes}, one exemplar of each class, got "
                f"{self.buffer_size}"
            )

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs, also of the old network."""
        super().grow(num_classes)
        self._check_buffer_size()
        grow_head(self.old_network.get_submodule("head"), self)
        self.is_old_class = resized(self.is_old_class, (num_classes,))

    @property
    def stored_samples(self) -> ExemplarSet:
        """The exemplars."""
        return self.exemplars

    @abstractmethod
    def current_loss(self, current: Samples) -> ReplayLoss:
        """The loss on a batch of data and exemplars."""

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss on the incoming batch."""
        return self.current_loss(current)

    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """The task's data and the exemplars."""
        data = super().stream(sequence, epoch)
        return concatenate([data, self.exemplars.samples]) if len(self.exemplars) else data

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse exemplars that cannot be from this sequence."""
        super().on_load_checkpoint(checkpoint)
        saved = ExemplarSet(self.buffer_size)
        saved.set_extra_state(checkpoint["state_dict"].get("exemplars._extra_state"))
        if len(saved) and has_trainer(self):
            form = stored_form(self.backbone, self.sequence.image_shape)
            check_samples("exemplars", saved.samples, form, self.sequence.is_class_of_task)

    def begin_task(self) -> None:
        """Set the old classes."""
        self.is_old_class = self.is_seen_class.clone()
        self.is_old_class[self.sequence.is_class_of_task[self.task]] = False

    def end_task(self) -> None:
        """Choose exemplars and keep the network."""
        self.choose_exemplars()
        self.keep_network()

    def choose_exemplars(self) -> None:
        """Store exemplars of the task's classes and shrink the old ones."""
        num_classes = int(self.is_seen_class.sum())
        number = self.exemplars.buffer_size // num_classes
        self.exemplars.store(self.ranked(self.sequence.training_samples(self.task), number), num_classes)

    def ranked(self, samples: Samples, number: int) -> Samples:
        """The exemplars of each class in order of preference: by default herding.

        Args:
            samples: Data of a task.
            number: Number of exemplars per class.
        """
        features = self.features_of(samples).cpu()
        classes = torch.unique(samples.labels)
        chosen = []
        for step in track(self.trainer, len(classes), "choosing exemplars"):
            members = (samples.labels == classes[step]).nonzero().squeeze(1)
            chosen.append(members[herding(features[members], number)])
        return samples[torch.cat(chosen)]

    def keep_network(self) -> None:
        """Copy the network to the old network."""
        self.old_network.load_state_dict(self.network.state_dict())

    def old_outputs(self, images: Tensor) -> Tensor:
        """Logits of the old network."""
        with evaluating(self.old_network):
            logits: Tensor = self.old_network(images)
        return logits

    @property
    def is_distilling(self) -> bool:
        """Whether there is an old network to distil from."""
        return self.task > 0

    @property
    def is_between_tasks(self) -> bool:
        """Whether the current task has ended."""
        return self.progress.is_between_tasks
