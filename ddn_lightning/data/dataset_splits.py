"""The training, validation and test images of a dataset, loaded and checked, and the task of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn import functional

from ddn_lightning.construction import Constructed
from ddn_lightning.data.data_record import DataRecord, SplitFacts
from ddn_lightning.data.loaded import check_one_size, check_tasks, checked, checked_domains
from ddn_lightning.data.plan import Plan, PlannedSamples
from ddn_lightning.data.streams.streams import Streams
from ddn_lightning.data.validation_split import ValidationSplit
from ddn_lightning.errors import ClosedTestSetError, ConfigurationError
from ddn_lightning.samples import Samples, SelectedSamples


class DatasetSplits(Constructed, LightningDataModule, ABC):
    """The splits of a dataset: everything of a :class:`TaskSequence` except its loaders.

    A dataset implements :meth:`load` and sets the first class attributes below, from ``name`` to ``has_domains``.
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 4
    flip: bool = True
    num_classes: int
    has_domains: bool = False  # whether load_tasks gives the domain of each image

    train_set: Samples
    val_set: Samples  # held out from the training images, if there is a validation split
    train_plan: Plan | None = None  # which training sample comes when
    is_class_of_task: Tensor  # (num_tasks, num_classes), with further columns for outputs without a class
    class_order: Tensor  # all classes in the order in which they come
    num_tasks: int
    tasks_before: int = 0  # of the sequence that this one follows
    stream: Streams
    validation: ValidationSplit | None
    closed_test: bool
    eval_batch_size: int

    def __init__(self) -> None:
        super().__init__()
        self._facts: dict[bool, SplitFacts] = {}  # by whether it is the training split
        self._features: dict[bool, Samples] = {}  # what is served instead of a split, by the same
        self._held_out: Tensor | None = None  # numbers of the validation images, in the order of load

    @abstractmethod
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The training or test split: ``uint8`` images (number, channels, height, width) and labels."""

    def load_tasks(self, train: bool) -> Tensor:
        """The domain of each image of a split, in the order of :meth:`load`, if the data ``has_domains``."""
        raise ConfigurationError(f"{type(self).__name__} has_domains, and must write load_tasks(train)")

    def label_names(self) -> Sequence[str] | None:
        """The class names in label order, if the data has any."""
        return getattr(self, "class_names", None)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of the images."""
        return next(iter(self._facts.values())).image_shape

    @cached_property
    def test_set(self) -> Samples:
        """The test split; closed, it raises a :class:`ClosedTestSetError`."""
        return self._split(train=False)

    @property
    def measured_on(self) -> Literal["validation", "test"]:
        """The images that a fit is measured on, and that :class:`Forgetting` logs as ``val/*``."""
        return "test" if self.validation is None else "validation"

    @property
    def measured_set(self) -> Samples:
        """The samples that a fit is measured on: the validation split if there is one, else the test split."""
        return self.test_set if self.validation is None else self.val_set

    def reserve(self, num_outputs: int) -> None:
        """Count outputs of the network beyond the data's classes, for classes to come, as classes of no task."""
        own = self.is_class_of_task[:, : self.num_classes]
        self.is_class_of_task = functional.pad(own, (0, max(num_outputs - self.num_classes, 0)))
        if self.train_plan is not None:
            self.train_plan = replace(self.train_plan, is_class_of_task=self.is_class_of_task)

    def follow(self, num_tasks: int) -> None:
        """Count tasks on from those of another sequence."""
        self.tasks_before = num_tasks

    def training_samples(self, task: int) -> Samples:
        """All training samples of one task."""
        samples = self.served(train=True)
        assert samples.tasks is not None
        return SelectedSamples.of(samples, (samples.tasks == task).nonzero().squeeze(1))

    def served(self, train: bool) -> Samples:
        """The training samples, or those that a fit is measured on, as the loaders give them.

        They are images, or features after :meth:`serve_features`.
        """
        if train not in self._features:
            return self.train_set if train else self.measured_set
        return self._features[train]

    def serve_features(self, features_of: Callable[[Samples], Tensor]) -> None:
        """Give features instead of images, until the next setup.

        Args:
            features_of: From a split to the features of its images, on the host.
        """
        for train, split in ((True, self.train_set), (False, self.measured_set)):
            self._features[train] = Samples(features_of(split), split.labels, tasks=split.tasks)

    def data_record(self) -> DataRecord:
        """The fingerprint of the data loaded so far."""
        names = self.label_names()
        return DataRecord(
            class_names=None if names is None else tuple(names),
            mean=tuple(self.mean),
            std=tuple(self.std),
            train=self._facts.get(True),
            test=self._facts.get(False),
        )

    def validation_record(self) -> dict[str, Any] | None:
        """Which training images are held out; ``None`` without a validation split, or if it is not loaded."""
        if self.validation is None or self._held_out is None:
            return None
        return self.validation.record(self._held_out)

    def _split(self, train: bool) -> Samples:
        """Load a split; with the training images, the validation split."""
        if self.closed_test and not train:
            raise ClosedTestSetError(
                "closed_test is true, so the test images must not be opened: they would choose what they are to judge"
            )
        images, labels = checked(self.load(train), train, self.num_classes, self.mean)
        facts, others = SplitFacts.of(images, labels, self.num_classes), self._facts.get(not train)
        if others is not None:
            check_one_size(facts.image_shape, others.image_shape, train)
        self._facts[train] = facts
        plan = self._plan(labels, train)
        if train and self.validation is not None:
            is_held_out = self.validation.is_held_out(plan)
            self._held_out = is_held_out.nonzero().squeeze(1)
            self.val_set = self._samples(images, self.stream.change(plan[self._held_out], train=False))
            plan = plan[(~is_held_out).nonzero().squeeze(1)]
        plan = self.stream.change(plan, train)
        check_tasks(plan.tasks, train, self.is_class_of_task)
        if train:
            self.train_plan = replace(plan, is_class_of_task=self.is_class_of_task)
        return self._samples(images, plan)

    def _samples(self, images: Tensor, plan: Plan) -> Samples:
        if not self.stream and len(plan) == len(images):
            return Samples(images, plan.labels, tasks=plan.tasks)
        return PlannedSamples.of(images, plan, self._changed if self.stream.changes_images else None)

    def _changed(self, images: Tensor, task: int) -> Tensor:
        """The images of a domain or task after all streams, which count on where another sequence has ended."""
        return self.stream.change_images(images, self.tasks_before + task, self.tasks_before + self.num_tasks)

    def _plan(self, labels: Tensor, train: bool) -> Plan:
        """Which samples of a split come in which task, before the streams."""
        is_class_of_task = self.is_class_of_task[:, : self.num_classes]
        tasks = is_class_of_task.int().argmax(dim=0)[labels]
        if self.has_domains:
            tasks = checked_domains(self.load_tasks(train), len(labels), self.num_tasks)
        plan = Plan(torch.arange(len(labels)), labels, tasks, is_class_of_task, self.class_order)
        return replace(plan, tasks_before=self.tasks_before)
