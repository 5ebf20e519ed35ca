"""A method in the midst of a sequence of random images, whose steps can be taken one by one."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor

from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.methods.replay_method import ReplayMethod
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.samples import Samples


@dataclass(frozen=True)
class Workload:
    """What a step works on.

    Args:
        width: Channels of ResNet-18's first stage.
        batch: Incoming images per step, and as many of each draw from memory.
        image_size: Height and width of the images.
        num_classes: Classes of the sequence, in two tasks.
        buffer_size: Images in memory.
        device: Where to compute.
        precision: As the Trainer takes it.
    """

    width: int = 20
    batch: int = 32
    image_size: int = 32
    num_classes: int = 10
    buffer_size: int = 200
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "32-true"


class RandomImages(TaskSequence):
    """Random images in two tasks.

    Args:
        workload: Their size and number of classes.
        steps: Batches per task.
    """

    name = "random images"
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self, workload: Workload, steps: int = 1) -> None:
        self.num_classes = workload.num_classes
        super().__init__(num_tasks=2, batch_size=workload.batch)
        self.workload = workload
        self.steps = steps

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """As many as there are batches for; for testing one of each class."""
        number = 2 * self.steps * self.workload.batch if train else self.num_classes
        labels = torch.arange(number) * self.num_classes // number  # both tasks have equally many
        shape = (number, 3, self.workload.image_size, self.workload.image_size)
        return torch.randint(256, shape, dtype=torch.uint8), labels


def quiet_trainer(workload: Workload, **kwargs: Any) -> Trainer:
    """A Trainer for one device that leaves nothing behind."""
    index = workload.device.index
    devices = [index] if index is not None and workload.device.type != "cpu" else 1
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    quiet |= {"logger": False, "max_epochs": -1, "num_sanity_val_steps": 0, "log_every_n_steps": 0}
    quiet |= {"accelerator": workload.device.type, "devices": devices, "precision": workload.precision}
    return Trainer(**{**quiet, **kwargs})


class Subject:
    """A method in its second task, with a full memory.

    Args:
        method_class: Which method.
        workload: What its steps work on.
        distiller: Source of soft labels, if any.
    """

    def __init__(
        self, method_class: type[ReplayMethod], workload: Workload, distiller: LabelDistiller | None = None
    ) -> None:
        seed_everything(0, verbose=False)
        self.workload = workload
        self.method = method_class(
            ResNet18(width=workload.width),
            workload.num_classes,
            workload.buffer_size,
            workload.batch,
            distiller=distiller,
        )
        if isinstance(self.method, PixelDistillation):
            self.method.distillation_steps = 1  # at a task's end, which is no part of a step
        self.trainer = quiet_trainer(workload)
        self.trainer.fit(self.method, RandomImages(workload))
        self.method.to(workload.device).train()  # Lightning leaves it on the host
        self.trainer.strategy.optimizers = self.method.configure_optimizers()
        self.batch = self._batch(workload.batch, task=1)
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        samplings = [callback for callback in callbacks if isinstance(callback, ReservoirSampling)]
        self.sampling = samplings[0] if samplings else None
        self._fill_memory()

    def step(self) -> None:
        """Train on a batch and offer it to the memory."""
        with self.trainer.precision_plugin.train_step_context():
            outputs = self.method.training_step(self.batch, 0)
        self.insert(outputs)

    def insert(self, outputs: dict[str, Tensor]) -> None:
        """Offer the batch to the memory."""
        if self.sampling is not None:
            self.sampling.on_train_batch_end(self.trainer, self.method, outputs, self.batch, 0)

    def update(self) -> None:
        """The distiller's part of a step."""
        assert self.method.distiller is not None
        self.method.distiller.update(self.method, self.method.augment(self.batch))

    def _fill_memory(self) -> None:
        if self.sampling is None:
            return
        self.method.memory.to(self.workload.device)
        batch = self._batch(self.workload.buffer_size, task=0)
        logits = self.method.memory[torch.zeros(len(batch), dtype=torch.long)].logits  # of one that is there
        self.method.memory.add(replace(batch, logits=logits))

    def _batch(self, number: int, task: int) -> Samples:
        size, classes = self.workload.image_size, self.workload.num_classes // 2
        images = torch.randint(256, (number, 3, size, size), dtype=torch.uint8)
        labels = torch.randint(classes, (number,)) + task * classes
        return Samples(images, labels, tasks=torch.full((number,), task)).to(self.workload.device)
