"""What the loop around the network costs: plain PyTorch, a bare Lightning loop, and ours with everything on."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from ddn_lightning.bench.stopwatch import Clock, Timing, clock_of
from ddn_lightning.bench.subject import RandomImages, Workload, quiet_trainer
from ddn_lightning.callbacks.last_checkpoint import LastCheckpoint
from ddn_lightning.callbacks.task_progress_bar import TaskProgressBar
from ddn_lightning.methods.er import ER
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.runs.curve_logger import CurveLogger

LOOPS = ("plain PyTorch", "bare Lightning", "ddn_lightning")
LOG_EVERY = 50  # Lightning's default


class ChannelMeans(Backbone):
    """Next to no network, so that what remains is the loop."""

    feature_dim = 3

    def forward(self, images: Tensor) -> Tensor:
        """The mean of each channel."""
        return images.mean(dim=(2, 3))


class BareER(LightningModule):
    """ER as short as Lightning lets it be: two batches that come ready, one backward pass, SGD.

    Args:
        network: From images to logits.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        """Cross-entropy on both."""
        images, labels, old_images, old_labels = batch
        current = functional.cross_entropy(self.network(images), labels)
        return current + functional.cross_entropy(self.network(old_images), old_labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.03)


class StepTimes(Callback):
    """Notes the time at each batch's start."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.times: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note the time."""
        self.times.append(self.clock())

    @property
    def seconds(self) -> list[float]:
        """How long each step took, with all that comes before the next; not the first, which is slower."""
        return [after - before for before, after in pairwise(self.times[1:])]


def time_loops(workload: Workload, backbone: bool, steps: int, rounds: int) -> dict[str, Timing]:
    """Time steps of all three loops in turn.

    Args:
        workload: What they work on.
        backbone: Whether with ResNet-18, or with next to no network.
        steps: Steps per loop and round.
        rounds: How often.
    """
    clock = clock_of(workload.device)
    seconds: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(rounds):
        network = ResNet18(width=workload.width) if backbone else ChannelMeans()
        seconds[LOOPS[0]] += _plain(workload, network, steps, clock)
        seconds[LOOPS[1]] += _bare(workload, network, steps, clock)
        seconds[LOOPS[2]] += _ours(workload, network, steps, clock)
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


def _ready_batches(workload: Workload, steps: int) -> Iterator[list[Tensor]]:
    shape = (workload.batch, 3, workload.image_size, workload.image_size)
    images = [torch.randn(shape) for _ in range(2)]
    labels = [torch.randint(workload.num_classes, (workload.batch,)) for _ in range(2)]
    for _ in range(steps + 2):  # the first two, as of the others, do not count
        yield [images[0], labels[0], images[1], labels[1]]


def _plain(workload: Workload, backbone: Backbone, steps: int, clock: Clock) -> list[float]:
    bare = BareER(nn.Sequential(backbone, nn.Linear(backbone.feature_dim, workload.num_classes)))
    bare.to(workload.device)
    optimizer = bare.configure_optimizers()
    watch = StepTimes(clock)
    for batch in _ready_batches(workload, steps):
        watch.times.append(clock())
        optimizer.zero_grad()
        loss = bare.training_step([tensor.to(workload.device) for tensor in batch], 0)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()
    return watch.seconds


def _bare(workload: Workload, backbone: Backbone, steps: int, clock: Clock) -> list[float]:
    watch = StepTimes(clock)
    bare = BareER(nn.Sequential(backbone, nn.Linear(backbone.feature_dim, workload.num_classes)))
    trainer = quiet_trainer(workload, callbacks=[watch], max_epochs=1)
    batches = list(_ready_batches(workload, steps))
    trainer.fit(bare, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]  # a list will do
    return watch.seconds


def _ours(workload: Workload, backbone: Backbone, steps: int, clock: Clock) -> list[float]:
    """With a progress bar, curves on disk, a reservoir, metrics and checkpoints."""
    watch = StepTimes(clock)
    method = ER(backbone, workload.num_classes, workload.buffer_size, workload.batch)
    with TemporaryDirectory() as folder, redirect_stdout(_Terminal()):
        trainer = quiet_trainer(
            workload,
            callbacks=[watch, TaskProgressBar(), LastCheckpoint(Path(folder))],
            logger=CurveLogger(folder, "loop", version=""),
            log_every_n_steps=min(LOG_EVERY, steps),
            enable_progress_bar=True,
            enable_checkpointing=True,
        )
        trainer.fit(method, RandomImages(workload, steps + 2))
    return watch.seconds[steps + 2 :]  # in the second task, and not where it begins


class _Terminal(StringIO):
    """Something that the progress bar takes for a terminal."""

    def isatty(self) -> bool:
        return True
