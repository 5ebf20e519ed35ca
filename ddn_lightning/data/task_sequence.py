"""The task sequence: the classes of each task, and the loaders of one ``fit`` over all tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor

from ddn_lightning.construction import Constructed
from ddn_lightning.data.data_record import DataRecord, SplitFacts
from ddn_lightning.data.dataset_reader import MapDataset
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.loaded import check_tasks, checked
from ddn_lightning.data.task_clock import TaskClock
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.notes import note
from ddn_lightning.random_streams import generator_for
from ddn_lightning.samples import Samples, SelectedSamples

LIGHTNINGS_MAX_EPOCHS = 1000  # the Trainer's default, indistinguishable from a user's own 1000

HINTS = {  # by the beginning of a difference to the data of a checkpoint, for an evaluation
    "the train ": "to evaluate anyway, set data.mean and data.std to those of its results.json",
    "the test ": "'ddn test RUN FOLDER' evaluates on other images",
}


class TaskSequence(Constructed, LightningDataModule, ABC):
    """A classification dataset, split by class into tasks that are learned in sequence within a single ``fit``.

    Task ``t`` is trained during the epochs ``[t * epochs_per_task, (t + 1) * epochs_per_task)``; accuracy is measured
    at each task's end, on the test images of the tasks seen so far. A dataset implements :meth:`load` and sets the
    class attributes below.

    Args:
        num_tasks: Number of tasks; must divide the number of classes.
        epochs_per_task: Epochs of each task; 1 is the online setting.
        batch_size: Incoming samples per step, over all devices.
        eval_batch_size: Samples per evaluation step, over all devices.
        class_order_seed: Seed for shuffling the classes over the tasks; ``None`` keeps the natural order.
        drop_last: Drop a task's smaller last batch; ``None`` drops it in the online setting only, where it would come
            just before the evaluation.
        evaluate_every_n_epochs: Epochs between two evaluations; ``None`` evaluates at task ends only.

    Example:
        >>> class Stripes(TaskSequence):
        ...     name, num_classes, mean, std = "stripes", 4, (0.5,), (0.5,)
        ...     def load(self, train):
        ...         labels = torch.arange(4).repeat(10 if train else 2)
        ...         return (60 * labels).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8), labels
        >>> Stripes(num_tasks=2).task_classes
        tensor([[0, 1],
                [2, 3]])
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 4
    flip: bool = True
    num_classes: int

    train_set: Samples
    test_set: Samples

    def __init__(
        self,
        num_tasks: int,
        epochs_per_task: int = 1,
        batch_size: int = 32,
        eval_batch_size: int = 256,
        class_order_seed: int | None = None,
        drop_last: bool | None = None,
        evaluate_every_n_epochs: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(
            num_tasks=num_tasks,
            epochs_per_task=epochs_per_task,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            evaluate_every_n_epochs=1 if evaluate_every_n_epochs is None else evaluate_every_n_epochs,
        )
        if self.num_classes % num_tasks:
            raise ConfigurationError(
                f"num_tasks must divide the {self.num_classes} classes of {type(self).__name__}, got {num_tasks}"
            )
        if epochs_per_task % (evaluate_every_n_epochs or epochs_per_task):
            raise ConfigurationError(
                f"evaluate_every_n_epochs must divide epochs_per_task = {epochs_per_task}, so that an evaluation falls "
                f"on each task's end, got {evaluate_every_n_epochs}"
            )
        self.num_tasks = num_tasks
        self._epochs_per_task = epochs_per_task
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.drop_last = epochs_per_task == 1 if drop_last is None else drop_last
        self.evaluate_every_n_epochs = evaluate_every_n_epochs or epochs_per_task
        self.transform = ImageTransform(self.mean, self.std, self.padding, self.flip)
        self._facts: dict[bool, SplitFacts] = {}  # by whether it is the training split
        self._features: dict[bool, Samples] = {}  # what is served instead of a split, by the same

        class_order = torch.arange(self.num_classes)
        if class_order_seed is not None:
            class_order = torch.randperm(self.num_classes, generator=torch.Generator().manual_seed(class_order_seed))
        self.task_classes = class_order.view(num_tasks, -1)  # (num_tasks, classes per task)
        self._shuffle_seed = 0

    @staticmethod
    def from_datasets(  # type: ignore[override]  # Lightning's makes no tasks
        train: MapDataset, test: MapDataset, num_tasks: int, **kwargs: Any
    ) -> "TaskSequence":
        """The classes of any map-style datasets as tasks: those of torchvision, Hugging Face or your own.

        Args:
            train: Training samples, (image, label) each.
            test: Test samples.
            num_tasks: Number of tasks; must divide the number of classes.
            **kwargs: Arguments of :class:`~ddn_lightning.data.split_dataset.SplitDataset`.

        Example:
            >>> from torchvision.datasets import MNIST  # doctest: +SKIP
            >>> TaskSequence.from_datasets(MNIST("data"), MNIST("data", train=False), 5, flip=False)  # doctest: +SKIP
        """
        from ddn_lightning.data.split_dataset import SplitDataset  # here, as it is a subclass

        return SplitDataset(train, test, num_tasks, **kwargs)

    @abstractmethod
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """The training or test split: ``uint8`` images (number, channels, height, width) and labels."""

    def label_names(self) -> Sequence[str] | None:
        """The class names in label order, if the data has any."""
        return getattr(self, "class_names", None)

    @property
    def epochs_per_task(self) -> int:
        """Epochs of each task; a single one in the Trainer's ``fast_dev_run``."""
        return 1 if getattr(self.trainer, "fast_dev_run", False) else self._epochs_per_task

    @property
    def clock(self) -> TaskClock:
        """The position of training in the sequence."""
        assert self.trainer is not None
        return TaskClock.of(self.trainer, self.num_tasks, self.epochs_per_task)

    @property
    def current_task(self) -> int:
        """The current task, or the next one between two tasks."""
        return self.clock.task

    def training_samples(self, task: int) -> Samples:
        """All training samples of one task."""
        samples = self.served(train=True)
        assert samples.tasks is not None
        return SelectedSamples.of(samples, (samples.tasks == task).nonzero().squeeze(1))

    def served(self, train: bool) -> Samples:
        """The samples of a split as the loaders give them: images, or features after :meth:`serve_features`."""
        return self._features.get(train, self.train_set if train else self.test_set)

    def serve_features(self, features_of: Callable[[Tensor], Tensor]) -> None:
        """Give features instead of images, until the next :meth:`setup`.

        Args:
            features_of: From raw images to their features, on the host.
        """
        for train, split in ((True, self.train_set), (False, self.test_set)):
            self._features[train] = replace(split, images=features_of(split.images))

    def setup(self, stage: str) -> None:
        """Load the splits that are needed and not loaded yet, and set the Trainer's number of epochs."""
        self._features = {}  # they belong to the method of an earlier fit
        if self.trainer is not None and stage == "fit":
            self._configure(self.trainer)
        if not hasattr(self, "test_set"):
            self.test_set = self._split(train=False)
        if stage == "fit" and not hasattr(self, "train_set"):
            self.train_set = self._split(train=True)
        if stage == "fit":
            seed = torch.initial_seed()  # without seed_everything, each rank has a different one
            self._shuffle_seed = seed if self.trainer is None else self.trainer.strategy.broadcast(seed)

    def train_dataloader(self) -> TaskLoader:
        """The samples of this epoch, shuffled; the method's ``samples_of_epoch`` chooses them."""
        clock = self.clock
        choose = getattr(getattr(self.trainer, "lightning_module", None), "samples_of_epoch", None)
        samples = self.training_samples(clock.task) if choose is None else choose(self, clock.epoch)
        if self.drop_last and len(samples) < self.batch_size:
            raise ConfigurationError(
                f"task {clock.task + 1} has {len(samples)} samples, fewer than one batch of batch_size = "
                f"{self.batch_size}: lower batch_size or set drop_last to false"
            )
        is_overfitting = getattr(self.trainer, "overfit_batches", 0) > 0  # the same batches in each epoch of a task
        epoch = clock.task * self.epochs_per_task if is_overfitting else clock.epoch
        generator = generator_for(self._shuffle_seed, f"order of epoch {epoch}")
        order = torch.randperm(len(samples), generator=generator)
        return TaskLoader(samples, self.batch_size, order=order, drop_last=self.drop_last)

    def val_dataloader(self) -> TaskLoader:
        """The test images of the tasks seen so far; batches contain the task of each image."""
        assert self.trainer is not None
        if self.trainer.state.fn == "fit":
            seen = self.clock.task + 1
        else:
            seen = getattr(self.trainer.lightning_module, "tasks_seen", 0) or self.num_tasks
        return self.evaluation_loader(seen)

    def test_dataloader(self) -> TaskLoader:
        """The test images of all tasks."""
        return self.evaluation_loader(self.num_tasks)

    def predict_dataloader(self) -> TaskLoader:
        """The test images of all tasks."""
        return self.test_dataloader()

    def evaluation_loader(self, tasks_seen: int) -> TaskLoader:
        """The test images of the first ``tasks_seen`` tasks."""
        samples = self.served(train=False)
        assert samples.tasks is not None
        seen = (samples.tasks < tasks_seen).nonzero().squeeze(1)
        return TaskLoader(samples, self.eval_batch_size, order=seen)

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

    def resume_state(self) -> dict[str, Any]:
        """The settings that a resumed run must share, and the seed of the data order.

        Saved by the method: Lightning silently drops the state of a data module of another class.
        """
        return {
            "name": self.name,
            "data": self.data_record().as_plain(),
            "shuffle_seed": self._shuffle_seed,
            "task_classes": self.task_classes.tolist(),
            "epochs_per_task": self.epochs_per_task,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
        }

    def resume_from(self, record: dict[str, Any]) -> None:
        """Restore the data order from a checkpoint; refuse a checkpoint of another sequence.

        All loaded splits must equal those of the checkpoint. An evaluation loads the training split only if mean and
        std are measured on it.
        """
        is_fit = self.trainer is not None and self.trainer.state.fn == "fit"
        own = self.resume_state()
        if not is_fit or own["name"] == record["name"]:  # else the error below names the difference
            self._check_same_data(record, is_fit)
        names = ("name", "task_classes", "epochs_per_task", "batch_size", "drop_last") if is_fit else ("task_classes",)
        for name in names:
            if own[name] != record[name]:
                raise ConfigurationError(f"{name} must be that of the checkpoint, {record[name]}, got {own[name]}")
        self._shuffle_seed = record["shuffle_seed"]

    def _check_same_data(self, record: dict[str, Any], is_fit: bool) -> None:
        if "data" not in record:
            note("this checkpoint of version 0.1 does not record its data, so the data is not checked")
            return
        difference = DataRecord.from_plain(record["data"]).difference(self.data_record(), "the checkpoint")
        if difference is not None:
            hints = [] if is_fit else [hint for start, hint in HINTS.items() if difference.startswith(start)]
            raise ConfigurationError("; ".join([difference, *hints]))

    def _split(self, train: bool) -> Samples:
        images, labels = checked(self.load(train), train, self.num_classes, self.mean)
        check_tasks(labels, train, self.task_classes)
        facts, others = SplitFacts.of(images, labels, self.num_classes), self._facts.get(not train)
        if others is not None and others.image_shape != facts.image_shape:
            shapes = (facts.image_shape, others.image_shape)[:: 1 if train else -1]
            raise ConfigurationError(
                f"load must return training and test images of one size, got (channels, height, width) = {shapes[0]} "
                f"and {shapes[1]}"
            )
        self._facts[train] = facts
        tasks = torch.empty(self.num_classes, dtype=torch.long)
        tasks[self.task_classes] = torch.arange(self.num_tasks)[:, None]
        return Samples(images, labels, tasks=tasks[labels])

    def _configure(self, trainer: Trainer) -> None:
        if trainer.fit_loop.epoch_progress.total.ready:
            raise ConfigurationError(
                "this Trainer has already run a fit, and a second one would train nothing: make a new Trainer (one fit "
                "trains the whole task sequence)"
            )
        if trainer.val_check_interval != 1.0:
            raise ConfigurationError(
                f"val_check_interval must be left at 1.0, got {trainer.val_check_interval}: use "
                "evaluate_every_n_epochs to measure accuracy within tasks"
            )
        epochs = self.num_tasks * self.epochs_per_task
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.fit_loop.epoch_loop.max_steps = -1  # Lightning's limit of batches holds in each task
        else:
            if trainer.max_epochs not in (None, -1, LIGHTNINGS_MAX_EPOCHS, epochs):
                raise ConfigurationError(
                    f"max_epochs must be {epochs} = {self.num_tasks} tasks x {self.epochs_per_task} epochs_per_task, "
                    f"or left out, got {trainer.max_epochs}"
                )
            trainer.check_val_every_n_epoch = self.evaluate_every_n_epochs
        trainer.fit_loop.max_epochs = epochs
        # any other number may give a resumed run the data of another epoch's task
        trainer.reload_dataloaders_every_n_epochs = 1  # type: ignore[attr-defined]
