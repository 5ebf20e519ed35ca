"""The task sequence: the classes of each task, and the loaders of one ``fit`` over all tasks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.construction import Constructed, named
from ddn_lightning.data.balanced_subset import images_of_each_task
from ddn_lightning.data.class_order import NamedOrder, class_matrix, ordered_classes
from ddn_lightning.data.configure_trainer import configure_trainer
from ddn_lightning.data.data_record import check_same_data
from ddn_lightning.data.dataset_reader import MapDataset
from ddn_lightning.data.dataset_splits import DatasetSplits
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.module_batches import ModuleBatches
from ddn_lightning.data.streams.stream import Stream
from ddn_lightning.data.streams.streams import NO_STREAM, Streams
from ddn_lightning.data.task_clock import TaskClock
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.data.validation_split import NO_VALIDATION, ValidationSplit
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.random_streams import generator_for
from ddn_lightning.samples import Samples


class TaskSequence(ModuleBatches, DatasetSplits):
    """A classification dataset, split by class into tasks that are learned in sequence within a single ``fit``.

    Task ``t`` is trained during the epochs ``[t * epochs_per_task, (t + 1) * epochs_per_task)``; accuracy is measured
    at each task's end, on the test images of the tasks seen so far, or on the images that a validation split holds out
    from training; the test images are then measured once, after the last task. A dataset implements :meth:`load` and
    sets the class attributes of :class:`DatasetSplits`.

    Args:
        num_tasks: Number of tasks; must divide the number of classes. ``task_sizes`` overrides it.
        epochs_per_task: Epochs of each task; 1 is the online setting.
        batch_size: Incoming samples per step, over all devices.
        eval_batch_size: Samples per evaluation step, over all devices.
        class_order_seed: Seed for shuffling the classes over the tasks; ``None`` keeps the natural order.
        drop_last: Drop a task's smaller last batch; ``None`` drops it in the online setting only, where it would come
            just before the evaluation.
        evaluate_every_n_epochs: Epochs between two evaluations; ``None`` evaluates at task ends only.
        task_sizes: Number of classes of each task, if they differ, such as ``[50, 10, 10, 10, 10, 10]``.
        class_order: The classes in the order in which they come, or ``pycil-1993``, that of PyCIL and many papers.
        stream: Which sample comes when: a :class:`Stream`, or several in their order; ``None`` for disjoint tasks.
        stream_seed: Seed of the streams. It is not the run's: runs with different seeds learn the same stream.
        validation_share: Share of the training images of each class, and domain, to hold out and measure on. Streams
            thin and mislabel the others only. A mean or std that is measured is that of all training images.
        validation_per_class: Number of images to hold out of each class, instead of a share.
        validation_seed: Seed of the held-out images, not the run's.
        as_tuples: Whether batches are ``(images, labels)``, augmented and normalised, instead of raw :class:`Samples`;
            by default for modules that are no methods of ours.
        closed_test: Whether opening the test images raises a :class:`ClosedTestSetError`, as a search for
            hyper-parameters must have it; needs a validation split.
        evaluate_every_n_tasks: Tasks between two evaluations, if not one; the last task's end always has one. The
            accuracy matrix has rows of these tasks only; :mod:`ddn_lightning.metrics.functional` says what FM is then.
        images_per_task: Number of images of each task to measure on, as many of each class, the same in all runs;
            ``None`` measures on all. The test images that a validation split opens after the last task are all.

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

    def __init__(
        self,
        num_tasks: int,
        epochs_per_task: int = 1,
        batch_size: int = 32,
        eval_batch_size: int = 256,
        class_order_seed: int | None = None,
        drop_last: bool | None = None,
        evaluate_every_n_epochs: int | None = None,
        task_sizes: list[int] | None = None,
        class_order: list[int] | NamedOrder | None = None,
        stream: Stream | list[Stream] | None = None,
        stream_seed: int = 0,
        validation_share: float | None = None,
        validation_per_class: int | None = None,
        validation_seed: int = 0,
        closed_test: bool = False,
        as_tuples: bool | None = None,
        evaluate_every_n_tasks: int | None = None,
        images_per_task: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(
            epochs_per_task=epochs_per_task,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            evaluate_every_n_epochs=1 if evaluate_every_n_epochs is None else evaluate_every_n_epochs,
            evaluate_every_n_tasks=1 if evaluate_every_n_tasks is None else evaluate_every_n_tasks,
            images_per_task=1 if images_per_task is None else images_per_task,
        )
        if evaluate_every_n_tasks is not None and evaluate_every_n_epochs is not None:
            raise ConfigurationError(
                f"evaluate_every_n_epochs must be left out with evaluate_every_n_tasks = {evaluate_every_n_tasks}, got "
                f"{evaluate_every_n_epochs}"
            )
        if epochs_per_task % (evaluate_every_n_epochs or epochs_per_task):
            raise ConfigurationError(
                f"evaluate_every_n_epochs must divide epochs_per_task = {epochs_per_task}, so that an evaluation falls "
                f"on each task's end, got {evaluate_every_n_epochs}"
            )
        self._epochs_per_task = epochs_per_task
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.drop_last = epochs_per_task == 1 if drop_last is None else drop_last
        self.evaluate_every_n_epochs = evaluate_every_n_epochs or epochs_per_task * (evaluate_every_n_tasks or 1)
        self.evaluate_every_n_tasks = evaluate_every_n_tasks
        self.images_per_task = images_per_task
        self._measured: Tensor | None = None  # places of these images
        self.transform = ImageTransform(self.mean, self.std, self.padding, self.flip)

        self.stream = Streams(stream, stream_seed, self.has_domains)
        self.validation = ValidationSplit.of(validation_share, validation_per_class, validation_seed)
        if closed_test and self.validation is None:
            raise ConfigurationError(
                "closed_test needs validation_share or validation_per_class, or nothing could be measured, got neither"
            )
        self.closed_test = closed_test
        self.as_tuples = as_tuples
        if class_order_seed is not None and self.stream.is_by_domain:
            raise ConfigurationError(
                f"class_order_seed must be left out where every task has all classes, got {class_order_seed}: it "
                "changes nothing there, and ddn tune needs --protocol whole"
            )
        self.class_order = ordered_classes(self.num_classes, class_order, class_order_seed)
        tasks = num_tasks if task_sizes is None else task_sizes
        self.is_class_of_task = class_matrix(self.class_order, tasks, self.stream.is_by_domain, type(self).__name__)
        self.num_tasks = len(self.is_class_of_task)
        most = int(self.is_class_of_task.sum(dim=1).max())
        if images_per_task is not None and images_per_task < most:
            raise ConfigurationError(
                f"images_per_task must be at least {most}, one of each class, got {images_per_task}"
            )
        self._shuffle_seed = 0
        self._epochs: Callable[[int], Samples] | None = None  # the samples that a method has chosen

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

    def followed_by(self, more: "TaskSequence") -> "TaskSequence":
        """This sequence and then another: new classes, or new data of old ones, for a method that has learned this one.

        Args:
            more: The tasks to come; see :class:`~ddn_lightning.data.grown_sequence.GrownSequence`.

        Example:
            >>> method = ddn_lightning.load("runs/mine")  # doctest: +SKIP
            >>> Trainer(max_epochs=-1).fit(method, sequence.followed_by(more))  # doctest: +SKIP
        """
        from ddn_lightning.data.grown_sequence import GrownSequence  # here, as it is a subclass

        return GrownSequence(self, more)

    @property
    def task_classes(self) -> Tensor | tuple[Tensor, ...]:
        """The classes of each task: a row for each, or a tensor for each if tasks differ in size."""
        rows = tuple(self.class_order[is_class[self.class_order]] for is_class in self.is_class_of_task)
        return torch.stack(rows) if len({len(row) for row in rows}) == 1 else rows

    @property
    def may_come(self) -> Tensor:
        """Whether training shows each label in each task (num_tasks, num_classes), as far as it is known."""
        if not self.stream:
            return self.is_class_of_task
        return torch.ones_like(self.is_class_of_task) if self.train_plan is None else self.train_plan.counts() > 0

    @property
    def epochs_per_task(self) -> int:
        """Epochs of each task; a single one in the Trainer's ``fast_dev_run``."""
        return 1 if getattr(self.trainer, "fast_dev_run", False) else self._epochs_per_task

    @property
    def clock(self) -> TaskClock:
        """The position of training in the sequence."""
        assert self.trainer is not None
        return TaskClock.of(self.trainer, self.num_tasks, self.epochs_per_task)

    def __str__(self) -> str:
        """What it splits into how many tasks; Lightning's would load all images."""
        return f"{type(self).__name__} of {self.name}, {self.num_tasks} tasks of {self.epochs_per_task} epochs"

    def setup(self, stage: str) -> None:
        """Load the splits that are needed and not loaded yet, and set the Trainer's number of epochs."""
        self.check_form()
        self._features = {}  # they belong to the method of an earlier fit
        self._epochs = None  # so do these
        self.reserve(getattr(getattr(self.trainer, "lightning_module", None), "num_classes", 0))
        if self.trainer is not None and stage == "fit":
            configure_trainer(self.trainer, self.num_tasks, self.epochs_per_task, self.evaluate_every_n_epochs)
        is_validation = stage == "validate" and self.validation is not None
        if stage in ("test", "predict") or not (self.closed_test or is_validation):
            _ = self.test_set  # loads it, so that damaged test images are refused before training
        if (stage == "fit" or is_validation) and not hasattr(self, "train_set"):
            self.train_set = self._split(train=True)
        if stage == "fit":
            seed = torch.initial_seed()  # without seed_everything, each rank has a different one
            self._shuffle_seed = seed if self.trainer is None else self.trainer.strategy.broadcast(seed)

    def serve_epochs(self, samples_of_epoch: Callable[[int], Samples]) -> None:
        """Let a method choose the training samples of each epoch, until the next fit."""
        self._epochs = samples_of_epoch

    def train_dataloader(self) -> TaskLoader:
        """The samples of this epoch, shuffled: those of its task, or those that :meth:`serve_epochs` was given."""
        clock = self.clock
        samples = self.training_samples(clock.task) if self._epochs is None else self._epochs(clock.epoch)
        self.check_batch(clock.task, len(samples))
        is_overfitting = getattr(self.trainer, "overfit_batches", 0) > 0  # the same batches in each epoch of a task
        epoch = clock.task * self.epochs_per_task if is_overfitting else clock.epoch
        generator = generator_for(self._shuffle_seed, f"order of epoch {epoch}")
        order = None if self.is_ordered(clock.task) else torch.randperm(len(samples), generator=generator)
        return TaskLoader(samples, self.batch_size, order=order, drop_last=self.drop_last)

    def is_ordered(self, task: int) -> bool:
        """Whether the samples of a task come in a fixed order, instead of shuffled."""
        return self.train_plan is not None and self.train_plan.is_ordered

    def check_batch(self, task: int, number: int) -> None:
        """Refuse a task with so few samples that its only batch would be dropped."""
        if self.drop_last and number < self.batch_size:
            raise ConfigurationError(
                f"task {task + 1} has {number} samples, fewer than one batch of batch_size = {self.batch_size}: lower "
                "batch_size or set drop_last to false"
            )

    def val_dataloader(self) -> TaskLoader:
        """The validation images of the tasks seen so far, or the test images without a validation split.

        Batches contain the task of each image.
        """
        assert self.trainer is not None
        if self.trainer.state.fn == "fit":
            seen = self.clock.task + 1
        else:
            seen = getattr(self.trainer.lightning_module, "tasks_seen", 0) or self.num_tasks
        return self.evaluation_loader(seen)

    def test_dataloader(self) -> TaskLoader:
        """The test images of all tasks."""
        samples = self.served(train=False) if self.validation is None else self.test_set
        return TaskLoader(samples, self.eval_batch_size)

    def predict_dataloader(self) -> TaskLoader:
        """The test images of all tasks."""
        return self.test_dataloader()

    def evaluation_loader(self, tasks_seen: int) -> TaskLoader:
        """The images that a fit is measured on: of the first ``tasks_seen`` tasks, all or ``images_per_task``."""
        samples = self.served(train=False)
        assert samples.tasks is not None
        if self.images_per_task is None:
            measured = torch.arange(len(samples), device=samples.tasks.device)
        elif self._measured is None:
            measured = self._measured = images_of_each_task(samples.labels, samples.tasks, self.images_per_task)
        else:
            measured = self._measured
        return TaskLoader(samples, self.eval_batch_size, order=measured[samples.tasks[measured] < tasks_seen])

    def epochs_to_evaluate(self, epochs_done: int) -> int:
        """The number of epochs after which the last evaluation is due, of those done."""
        is_over = epochs_done >= self.num_tasks * self.epochs_per_task
        return epochs_done if is_over else epochs_done // self.evaluate_every_n_epochs * self.evaluate_every_n_epochs

    def resume_state(self) -> dict[str, Any]:
        """The settings that a resumed run must share, and the seed of the data order.

        Saved by the method: Lightning silently drops the state of a data module of another class.
        """
        return {
            "name": self.name,
            "data": self.data_record().as_plain(),
            "shuffle_seed": self._shuffle_seed,
            "task_classes": [classes.tolist() for classes in self.task_classes],
            "epochs_per_task": self.epochs_per_task,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            **self.stream.resume_state(self.train_plan),
            "validation": self.validation_record(),
        }

    def continues(self, record: dict[str, Any]) -> bool:
        """Whether a checkpoint is one of the tasks before those to learn, so that a method goes on from it."""
        return False

    def resume_from(self, record: dict[str, Any]) -> None:
        """Restore the data order from a checkpoint; refuse a checkpoint of another sequence."""
        self.check_record(record, self.trainer is not None and self.trainer.state.fn == "fit")
        self._shuffle_seed = record["shuffle_seed"]

    def check_record(self, record: dict[str, Any], is_fit: bool) -> None:
        """Refuse the :meth:`resume_state` of another sequence.

        All loaded splits must equal those of the checkpoint. An evaluation loads the training split only if mean and
        std are measured on it.

        Args:
            record: What a checkpoint has saved.
            is_fit: Whether training goes on, which depends on more than an evaluation.
        """
        is_validation = self.trainer is not None and self.trainer.state.fn == "validate"
        own = self.resume_state()
        if not is_fit or own["name"] == record["name"]:  # else the error below names the difference
            check_same_data(record["data"], self.data_record(), is_fit)
        of_fit = ("name", "task_classes", "epochs_per_task", "batch_size", "drop_last", *NO_STREAM, *NO_VALIDATION)
        of_evaluation = ("task_classes", "domains", *(NO_VALIDATION if is_validation else ()))
        for name in of_fit if is_fit else of_evaluation:
            if own[name] != record[name]:
                raise ConfigurationError(f"{name} must be that of the checkpoint, {record[name]}, got {own[name]}")


def logged_arguments(method: Constructed, data: object) -> dict[str, Any]:
    """Class and arguments of a method, its parts and its data under flat dotted names, for loggers."""
    flat = {name.removeprefix("method."): value for name, value in named("method", method).items()}
    if isinstance(data, TaskSequence):
        flat |= {**named("data", data), "data.num_tasks": data.num_tasks}  # task_sizes or domains may override it
    return flat
