"""All methods and distillers, collected from the package so that new ones are tested too."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from tiny import DropoutNet
from torch import Tensor

import ddn_lightning
from ddn_lightning import Backbone, DataDistillNet, LabelDistiller, ReplayMethod, Samples


class SlowEnding(ddn_lightning.ER):
    """Stands for methods with an ``end_task``: changes the head, draws random numbers and counts the calls."""

    endings: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("endings", torch.zeros(10, dtype=torch.long))

    def end_task(self) -> None:
        samples = self.draw_memory()
        assert isinstance(samples, Samples)
        loss = self(samples.images).square().sum() / samples.total
        (gradient,) = torch.autograd.grad(loss, [self.head.weight])
        (gradient,) = ddn_lightning.distributed.sum_across_ranks([gradient])
        with torch.no_grad():
            self.head.weight -= 0.1 * gradient
        self.endings[self.task] += 1


class ControlledER(ddn_lightning.ER):
    """ER with all options enabled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, batches="concatenated", old_memory_weight=0.5, replay_weight=2.0, **kwargs)


METHODS = [
    found
    for found in vars(ddn_lightning).values()
    if inspect.isclass(found) and issubclass(found, ReplayMethod) and not inspect.isabstract(found)
]
METHODS += [SlowEnding, ControlledER]

DISTILLERS = [
    found
    for found in vars(ddn_lightning).values()
    if inspect.isclass(found) and issubclass(found, LabelDistiller) and not inspect.isabstract(found)
]


HOSTS_BY_DEFAULT = [ddn_lightning.ER, ddn_lightning.DERPlusPlus]  # of DDN; the others are slow
ALONE_IF_SLOW = [ddn_lightning.SI, ddn_lightning.XDER]  # their own tests compare two ranks with one by default


# every method alone, every replay method with Data-Distill-Net, and every other distiller with ER
COMBINATIONS = [
    pytest.param(method, None, id=method.__name__, marks=[pytest.mark.slow] if method in ALONE_IF_SLOW else [])
    for method in METHODS
]
COMBINATIONS += [
    pytest.param(
        method,
        distiller,
        id=f"{method.__name__}-{distiller.__name__}",
        marks=[] if method in HOSTS_BY_DEFAULT else [pytest.mark.slow],
    )
    for method in METHODS
    for distiller in DISTILLERS
    if method in vars(ddn_lightning).values() and method.takes_distiller()
    if distiller is DataDistillNet or method is ddn_lightning.ER
]


# shorter work at a task's end
SHORT: dict[type[ReplayMethod], dict[str, Any]] = {
    ddn_lightning.BiC: {"correction_epochs": 4},
    ddn_lightning.GDumb: {"memory_epochs": 2},
    ddn_lightning.LoDM: {"memory": lambda: ddn_lightning.LowRankMemory(matching_width=8)},
    ddn_lightning.LUCIR: {"fine_tuning_epochs": 2},
    ddn_lightning.PixelDistillation: {"distillation_steps": 3},
    ddn_lightning.RAR: {"replay_steps": 1},  # the tests count steps
}


class SaveAlways(Checkpoint):
    """Saves after every step, every evaluation and every epoch. Lightning calls it after all other callbacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"step{trainer.global_step}.ckpt")

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"evaluated{trainer.current_epoch}.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"epoch{trainer.current_epoch}.ckpt")


def build(
    method_class: type[ReplayMethod],
    distiller_class: Callable[[], LabelDistiller] | None = None,
    backbone: Backbone | None = None,
    **arguments: Any,
) -> ReplayMethod:
    distiller = distiller_class() if distiller_class else None
    sizes: dict[str, Any] = {"num_classes": 6, "buffer_size": 10, "replay_batch_size": 5}
    for base, short in SHORT.items():
        chosen = short.items() if issubclass(method_class, base) else ()
        sizes |= {name: value() if callable(value) else value for name, value in chosen}
    return method_class(backbone or DropoutNet(), distiller=distiller, **{**sizes, **arguments})
