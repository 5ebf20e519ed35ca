"""A method in the second task of a random sequence, ready for single training steps."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor

from ddn_lightning.bench.cost import REST, Part
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.methods.gdumb import GDumb
from ddn_lightning.methods.mir import CANDIDATES, MIR
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.methods.replay_method import ReplayMethod
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.samples import Samples

PARTS = ("augment", "draw", "forward", "backward and step", "meta-update", "insert", REST)


@dataclass(frozen=True)
class Workload:
    """The size of a training step.

    Args:
        width: Channels of ResNet-18's first stage.
        batch: Incoming images per step, and images of each draw from memory.
        image_size: Height and width of the images.
        num_classes: Classes of the sequence, in two tasks.
        buffer_size: Images in memory.
        device: Device to compute on.
        precision: Precision of the Trainer.
    """

    width: int = 20
    batch: int = 32
    image_size: int = 32
    num_classes: int = 10
    buffer_size: int = 200
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "32-true"

    def images(self, number: int) -> Tensor:
        """Random images as in a dataset, on the CPU."""
        return torch.randint(256, (number, 3, self.image_size, self.image_size), dtype=torch.uint8)

    def samples(self, number: int, task: int) -> Samples:
        """Random samples of a task, on the device."""
        classes = self.num_classes // 2
        images, labels = self.images(number), torch.randint(classes, (number,)) + task * classes
        return Samples(images, labels, tasks=torch.full((number,), task)).to(self.device)

    def method(
        self,
        method_class: type[ReplayMethod],
        distiller: LabelDistiller | None = None,
        backbone: Backbone | None = None,
    ) -> ReplayMethod:
        """A method of this size; by default with ResNet-18."""
        backbone = ResNet18(width=self.width) if backbone is None else backbone
        sizes: dict[str, Any] = {"candidates": max(CANDIDATES, self.batch)} if issubclass(method_class, MIR) else {}
        return method_class(backbone, self.num_classes, self.buffer_size, self.batch, distiller=distiller, **sizes)

    def trainer(self, **kwargs: Any) -> Trainer:
        """A Trainer for one device that writes no files."""
        index = self.device.index
        devices = [index] if index is not None and self.device.type != "cpu" else 1
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        settings = {"max_epochs": -1, "num_sanity_val_steps": 0, "log_every_n_steps": 0, "precision": self.precision}
        placed = {"accelerator": self.device.type, "devices": devices}
        return Trainer(**{**quiet, **settings, **placed, **kwargs})


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
        """Images for ``steps`` batches per task; for testing one of each class."""
        number = 2 * self.steps * self.workload.batch if train else self.num_classes
        labels = torch.arange(number) * self.num_classes // number  # equally many per task
        return self.workload.images(number), labels


class PreparedMethod:
    """A method in its second task, with a full memory.

    Args:
        method_class: Class of the method.
        workload: Size of its steps.
        distiller: Source of soft labels, if any.
    """

    def __init__(
        self, method_class: type[ReplayMethod], workload: Workload, distiller: LabelDistiller | None = None
    ) -> None:
        seed_everything(0, verbose=False)
        self.method = workload.method(method_class, distiller)
        if isinstance(self.method, PixelDistillation):
            self.method.distillation_steps = 1  # at task ends, which are not timed
        if isinstance(self.method, GDumb):
            self.method.memory_epochs = 1
        self.trainer = workload.trainer()
        self.trainer.fit(self.method, RandomImages(workload))
        self.method.to(workload.device).train()  # Lightning moves it back to the CPU
        self.trainer.strategy.optimizers = self.method.configure_optimizers()
        self.batch = workload.samples(workload.batch, task=1)
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        self.sampling = next((callback for callback in callbacks if isinstance(callback, ReservoirSampling)), None)
        if self.sampling is not None:
            memory, batch = self.method.memory, workload.samples(workload.buffer_size, task=0)
            memory.to(workload.device)
            memory.add(replace(batch, logits=memory[torch.zeros(len(batch), dtype=torch.long)].logits))

    def step(self) -> None:
        """Train on the batch and offer it to the memory."""
        with self.trainer.precision_plugin.train_step_context():
            outputs = self.method.training_step(self.batch, 0)
        self.insert(outputs)

    def insert(self, outputs: dict[str, Tensor]) -> None:
        """Offer the batch to the memory."""
        if self.sampling is not None:
            self.sampling.on_train_batch_end(self.trainer, self.method, outputs, self.batch, 0)

    def update(self) -> None:
        """Update the distiller."""
        assert self.method.distiller is not None
        self.method.distiller.update(self.method, self.method.augment(self.batch))

    @property
    def parts(self) -> list[Part]:
        """The parts of a step; a distiller's own draws and passes belong to its update."""
        method, distiller = self.method, self.method.distiller
        update = [] if distiller is None else [Part("meta-update", distiller, "update", with_nested=True)]
        return [
            Part("augment", method, "augment"),
            Part("draw", method, "draw_memory"),
            Part("forward", method, "forward"),
            Part("forward", method, "loss"),
            Part("backward and step", method, "descend"),
            *update,
            Part("insert", self, "insert"),
        ]
