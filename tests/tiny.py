"""Things so small that a whole task sequence is learned in a fraction of a second."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from ddn_lightning import ReplayMethod, Samples, SmallNet, TaskSequence

Fit = Callable[..., ReplayMethod]  # the fixture fit
MakeTrainer = Callable[..., Trainer]  # the fixture make_trainer


class TinySequence(TaskSequence):
    """Six classes of 8x8 noise around a pattern of their own, three tasks."""

    name = "tiny"
    mean = (0.5,)
    std = (0.25,)
    padding = 1
    flip = True
    num_classes = 6

    def __init__(self, num_tasks: int = 3, per_class: tuple[int, ...] = (12,) * 6, **kwargs: Any) -> None:
        super().__init__(num_tasks=num_tasks, **kwargs)
        self.per_class = per_class

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(int(train))
        patterns = torch.rand(self.num_classes, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        labels = torch.arange(self.num_classes).repeat_interleave(torch.tensor(self.per_class))
        noise = torch.rand(len(labels), 1, 8, 8, generator=generator)
        return (255 * (0.7 * patterns[labels] + 0.3 * noise)).to(torch.uint8), labels


class BatchNormNet(SmallNet):
    """A backbone with BatchNorm."""

    def __init__(self) -> None:
        super().__init__(width=4, feature_dim=8)
        self.layers.insert(1, nn.BatchNorm2d(4))


class DropoutNet(BatchNormNet):
    """A backbone with BatchNorm that draws from the global random state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.append(nn.Dropout(0.2))


def small_net() -> SmallNet:
    return SmallNet(width=4, feature_dim=8)


def random_samples(size: int, num_classes: int = 6, tasks: int = 3) -> Samples:
    labels = torch.randint(num_classes, (size,))
    images = torch.randint(256, (size, 1, 8, 8), dtype=torch.uint8)
    return Samples(images, labels, tasks=labels // (num_classes // tasks))


def quiet_trainer(**kwargs: Any) -> Trainer:
    """A Trainer that says nothing and leaves nothing, unless it is told to."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": -1, "num_sanity_val_steps": 0}
    return Trainer(**{**quiet, **kwargs})


class TinyPart(TinySequence):
    """Some of ten classes, by name, two in each task: parts of one and the same data."""

    def __init__(self, classes: tuple[int, int] = (0, 6), **kwargs: Any) -> None:
        self.classes = range(*classes)
        self.num_classes = len(self.classes)
        self.class_names = [f"class {number}" for number in self.classes]
        super().__init__(**{"num_tasks": len(self.classes) // 2, "batch_size": 12, **kwargs})

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        patterns = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        labels = torch.arange(10).repeat_interleave(12)
        noise = torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(int(train)))
        images = (255 * (0.7 * patterns[labels] + 0.3 * noise)).to(torch.uint8)
        chosen = torch.isin(labels, torch.tensor(list(self.classes)))
        return images[chosen], labels[chosen] - self.classes[0]
