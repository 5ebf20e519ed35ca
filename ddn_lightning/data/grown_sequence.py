"""Grown sequence: the tasks of one sequence, and then those of another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from ddn_lightning.checkpoint.construction import plain
from ddn_lightning.data.data_record import DataRecord, SplitFacts
from ddn_lightning.data.plan import Plan
from ddn_lightning.data.streams.streams import NO_STREAM, Streams
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.samples import LazySamples, Samples

OF_THE_RUN = (
    *("epochs_per_task", "batch_size", "drop_last", "evaluate_every_n_epochs", "images_per_task"),
    *("validation", "closed_test"),
)
OF_THE_TRANSFORM = ("mean", "std", "padding", "flip", "transform")


class GrownSequence(TaskSequence):
    """A sequence that continues: a method that has learned ``first`` goes on with ``more``, or a new one learns both.

    A class that both name is one class, and keeps its label; further ones are appended. Without names, equal labels are
    one class. Each task has test images of its own, also one with new data of old classes, so that the accuracy matrix
    goes on with a row and a column for each. Images are transformed as those of ``first``. Streams are planned for each
    part on its own; tasks count on, so that the first domain of ``more`` is not that of ``first`` again, and a stream
    that spaces its domains over all tasks, such as :class:`RotatedImages`, cannot go on.

    Args:
        first: The tasks that come first, those of a finished run.
        more: The tasks to come. Its batch size, epochs per task and evaluations must be those of ``first``.

    Example:
        >>> from ddn_lightning import PermutedPixels, SplitDigits
        >>> GrownSequence(SplitDigits(3, stream=PermutedPixels()), SplitDigits(2, stream=PermutedPixels())).num_tasks
        5
    """

    name = "grown"

    def __init__(self, first: TaskSequence, more: TaskSequence) -> None:
        if first is more:
            raise ConfigurationError("more must be another sequence than the one that it follows, got the same object")
        for option in OF_THE_RUN:
            before, given = (getattr(part, option) for part in (first, more))
            if given != before:
                raise ConfigurationError(f"{option} must be that of the sequence that goes on, {before}, got {given}")
        for stream in more.stream:
            if stream.is_spaced and any(type(stream) is type(before) for before in first.stream):
                raise ConfigurationError(
                    f"{type(stream).__name__} cannot go on: its domains are spaced over the number of tasks, so that "
                    "further ones would repeat them. Train all of them in one run, or grow by PermutedPixels"
                )
        self.first, self.more = first, more
        self.labels_of_more, self.class_names = _joined_classes(first, more)
        self.num_classes = max(first.num_classes, 1 + int(self.labels_of_more.max()))
        self.name = first.name if more.name == first.name else f"{first.name}+{more.name}"
        self.mean, self.std = first.mean, first.std
        self.padding, self.flip = first.padding, first.flip
        super().__init__(
            num_tasks=1,  # set below
            epochs_per_task=first.epochs_per_task,
            batch_size=first.batch_size,
            eval_batch_size=first.eval_batch_size,
            drop_last=first.drop_last,
            evaluate_every_n_epochs=first.evaluate_every_n_epochs if first.evaluate_every_n_tasks is None else None,
            evaluate_every_n_tasks=first.evaluate_every_n_tasks,
            images_per_task=first.images_per_task,
        )
        self.validation, self.closed_test = first.validation, first.closed_test
        self.num_tasks = first.num_tasks + more.num_tasks
        self.is_class_of_task = torch.zeros(self.num_tasks, self.num_classes, dtype=torch.bool)
        self.is_class_of_task[: first.num_tasks, : first.num_classes] = first.is_class_of_task[:, : first.num_classes]
        self.is_class_of_task[first.num_tasks :, self.labels_of_more] = more.is_class_of_task[:, : more.num_classes]
        is_new = self.labels_of_more[more.class_order] >= first.num_classes
        self.class_order = torch.cat([first.class_order, self.labels_of_more[more.class_order][is_new]])
        self.stream = GrownStreams(first.stream, more.stream, bool((self.labels_of_more < first.num_classes).any()))
        self.follow(first.tasks_before)

    def follow(self, num_tasks: int) -> None:
        """Count the tasks of both parts on from those of another sequence."""
        super().follow(num_tasks)
        self.first.follow(num_tasks)
        self.more.follow(num_tasks + self.first.num_tasks)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images and labels of both parts."""
        both = self._split(train)
        return both.images, both.labels

    def prepare_data(self) -> None:
        """Prepare both parts."""
        self.first.prepare_data()
        self.more.prepare_data()

    def setup(self, stage: str) -> None:
        """Set up both parts; refuse images of another size, and another transform."""
        for part in (self.first, self.more):
            part.trainer = None  # else the Trainer of an earlier fit of the part would refuse another one
            part.setup(stage)
        if self.more.image_shape != self.first.image_shape:
            raise ConfigurationError(
                f"images must have the size of those before, (channels, height, width) = {self.first.image_shape}, got "
                f"{self.more.image_shape}"
            )
        for option in OF_THE_TRANSFORM:
            given, before = self.more.constructor_arguments.get(option), getattr(self.first, option)
            if given is not None and plain(given) != plain(before):
                raise ConfigurationError(f"{option} must be that of the sequence that goes on, {before}, got {given}")
        self.mean, self.std, self.transform = self.first.mean, self.first.std, self.first.transform
        super().setup(stage)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of the images."""
        return self.first.image_shape

    def is_ordered(self, task: int) -> bool:
        """Whether the samples of a task come in a fixed order, instead of shuffled."""
        before = self.first.num_tasks
        return self.first.is_ordered(task) if task < before else self.more.is_ordered(task - before)

    def label_names(self) -> Sequence[str] | None:
        """The class names in label order, if both parts have any."""
        return self.class_names

    def data_record(self) -> DataRecord:
        """The fingerprint of both parts."""
        record = super().data_record()
        first, more = self.first.data_record(), self.more.data_record()
        train, test = self._facts_of(first.train, more.train), self._facts_of(first.test, more.test)
        return replace(record, train=train, test=test)

    def validation_record(self) -> dict[str, Any] | None:
        """Which training images of both parts are held out."""
        first, more = self.first.validation_record(), self.more.validation_record()
        if first is None or more is None:
            return None
        both = {"images": first["images"] + more["images"], "checksum": f"{first['checksum']}-{more['checksum']}"}
        return {**first, **both}

    def continues(self, record: dict[str, Any]) -> bool:
        """Whether a checkpoint is one of the first part."""
        return len(record["task_classes"]) == self.first.num_tasks

    def resume_from(self, record: dict[str, Any]) -> None:
        """Restore the data order from a checkpoint, of this sequence or of its first part; refuse any other."""
        if not self.continues(record):
            super().resume_from(record)
            return
        if self.epochs_per_task != (epochs := record["epochs_per_task"]):  # in a fast_dev_run
            raise ConfigurationError(
                f"epochs_per_task must be that of the checkpoint, {epochs}, got {self.epochs_per_task}"
            )
        self.first.check_record(record, is_fit=True)
        self._shuffle_seed = record["shuffle_seed"]

    def _split(self, train: bool) -> Samples:
        if train:
            self.train_plan = self._joined_plan()
            if self.validation is not None:
                self.val_set = self._joined(self.first.val_set, self.more.val_set)
        return self._joined(*(part.train_set if train else part.test_set for part in (self.first, self.more)))

    def _joined(self, first: Samples, more: Samples) -> Samples:
        assert first.tasks is not None
        assert more.tasks is not None
        labels = torch.cat([first.labels, self.labels_of_more[more.labels]])
        return JoinedSamples.of(first, more, labels, torch.cat([first.tasks, self.first.num_tasks + more.tasks]))

    def _joined_plan(self) -> Plan:
        first, more = self.first.train_plan, self.more.train_plan
        assert first is not None
        assert more is not None
        return Plan(
            torch.cat([first.samples, 1 + first.samples.max() + more.samples]),
            torch.cat([first.labels, self.labels_of_more[more.labels]]),
            torch.cat([first.tasks, self.first.num_tasks + more.tasks]),
            self.is_class_of_task,
            self.class_order,
            first.is_ordered and more.is_ordered,
        )

    def _facts_of(self, first: SplitFacts | None, more: SplitFacts | None) -> SplitFacts | None:
        """The fingerprint of a split of both parts."""
        if first is None or more is None:
            return None
        counts = torch.zeros(self.num_classes, dtype=torch.long)
        counts[: len(first.images_per_class)] += torch.tensor(first.images_per_class)
        counts.index_add_(0, self.labels_of_more, torch.tensor(more.images_per_class))
        return SplitFacts(
            first.image_shape,
            tuple(counts.tolist()),
            f"{first.labels_checksum}-{more.labels_checksum}",
            f"{first.images_checksum}-{more.images_checksum}",
        )


def _joined_classes(first: TaskSequence, more: TaskSequence) -> tuple[Tensor, list[str] | None]:
    """The label of each class of ``more`` in the grown sequence, and the names of all classes."""
    known, given = first.label_names(), more.label_names()
    if known is None and given is None:
        return torch.arange(more.num_classes), None
    if known is None or given is None:
        raise ConfigurationError(
            "both sequences must have class names, or neither, to know which classes are the same, but only "
            f"{'the first' if given is None else 'the one that follows'} has them"
        )
    for names in (known, given):
        if len(set(names)) < len(names):
            raise ConfigurationError(f"class names must differ, to know which classes are the same, got {list(names)}")
    joined = [*known, *(name for name in given if name not in known)]
    return torch.tensor([joined.index(name) for name in given]), joined


class JoinedSamples(LazySamples):
    """Two sets of samples as one.

    Neither is copied, and both may be larger than memory.

    Example:
        >>> some = Samples(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), tasks=torch.tensor([0, 0]))
        >>> joined = JoinedSamples.of(some, some, torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1]))
        >>> joined[torch.tensor([1, 2])].labels
        tensor([1, 2])
    """

    _parts: tuple[Samples, Samples]

    @classmethod
    def of(cls, first: Samples, second: Samples, labels: Tensor, tasks: Tensor) -> Self:
        """The samples of both, with labels and tasks of their own."""
        joined = cls.without_images(Samples(labels, labels, tasks=tasks))
        joined._parts = first, second
        return joined

    def look_up(self, index: Tensor | slice) -> Samples:
        """Those of either part, in the order asked for."""
        assert self.tasks is not None
        if isinstance(index, Tensor) and index.dtype == torch.long:
            rows = index % len(self)
        else:
            rows = torch.arange(len(self))[index]
        is_second = rows >= len(self._parts[0])
        if is_second.all() or not is_second.any():  # as in each batch of training
            images = self._part_images(rows)
        else:
            order = is_second.int().argsort(stable=True)
            parts = [self._part_images(rows[is_second == second]) for second in (False, True)]
            images = torch.empty_like(torch.cat(parts))
            images[order] = torch.cat(parts)
        return Samples(images, self.labels[rows], tasks=self.tasks[rows])

    def _part_images(self, rows: Tensor) -> Tensor:
        """The images of rows that are all of one part."""
        first, second = self._parts
        is_second = bool(len(rows)) and int(rows[0]) >= len(first)
        return second[rows - len(first)].images if is_second else first[rows].images


class GrownStreams(Streams):
    """The streams of two sequences, each of which changes its own samples.

    Args:
        first: Those of the first sequence.
        more: Those of the one that follows.
        has_old_classes: Whether a class of the first sequence comes again.
    """

    def __init__(self, first: Streams, more: Streams, has_old_classes: bool) -> None:
        self.parts = first, more
        self.has_old_classes = has_old_classes
        self.streams = (*first, *more)
        self.seed = first.seed
        self.has_domains = first.has_domains or more.has_domains

    @property
    def has_disjoint_classes(self) -> bool:
        """Whether each class comes in a single task."""
        return not self.has_old_classes and all(part.has_disjoint_classes for part in self.parts)

    def resume_state(self, plan: Plan | None) -> dict[str, Any]:
        """What a resumed run must share, of both parts."""
        if not self.streams:
            return NO_STREAM
        first, more = (part.resume_state(plan) for part in self.parts)
        return {name: [first[name], more[name]] for name in NO_STREAM} | {"plan": plan and plan.checksum}
