"""Baselines: the unrolled hypergradient, plain PyTorch and bare Lightning loops, torchvision image by image."""

from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from ddn_lightning.bench.cost import Clock
from ddn_lightning.bench.prepared_method import PreparedMethod, RandomImages, Workload
from ddn_lightning.callbacks.last_checkpoint import LastCheckpoint
from ddn_lightning.callbacks.task_progress_bar import TaskProgressBar
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.distill.hypergradient import FrozenNetwork
from ddn_lightning.learner import Learner
from ddn_lightning.methods.er import ER
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.runs.curve_logger import CurveLogger
from ddn_lightning.samples import Samples

Mode = Literal["exact", "matching", "head", "step"]
MODES: tuple[Mode, ...] = get_args(Mode)
UNROLLED = "unrolled"
PLAIN, BARE, OURS = LOOPS = ("plain PyTorch", "bare Lightning", "ddn_lightning")
WHOLE_BATCH, PER_IMAGE = "whole batch", "torchvision, image by image"
LOG_EVERY = 50  # Lightning's default
WARM_UP = 2  # steps at the start of a loop, which are not timed


class UnrolledNet(DataDistillNet):
    """Data-Distill-Net with a second-order graph: autograd unrolls the virtual step."""

    def outer_loss(self, method: Learner, inner: Samples, outer: list[Samples]) -> Tensor:
        """The outer loss at the virtual parameters, which are a function of the labels."""
        network = FrozenNetwork(method.network)
        leaves = {name: parameter.requires_grad_() for name, parameter in network.parameters.items()}
        loss = self.learned_inner_loss(inner, network(leaves, inner.images))
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        lr = method.current_lr
        moved = {name: p - lr * g for (name, p), g in zip(leaves.items(), gradients, strict=True)}
        return network.loss(moved, outer)


class LookAheads:
    """Updates of G: unrolled, and in each mode of the hypergradient.

    Args:
        workload: Size of a step.
    """

    def __init__(self, workload: Workload) -> None:
        self.unrolled = PreparedMethod(ER, workload, UnrolledNet())
        self.by_mode = PreparedMethod(ER, workload, DataDistillNet())
        self.updates: dict[str, Callable[[], None]] = {UNROLLED: self.unrolled.update}
        self.updates |= {mode: partial(self._update, mode) for mode in MODES}

    def _update(self, mode: Mode) -> None:
        assert isinstance(self.by_mode.method.distiller, DataDistillNet)
        self.by_mode.method.distiller.lookahead = mode
        self.by_mode.update()

    def errors(self) -> dict[str, dict[str, float]]:
        """Relative error and cosine of each mode's gradient to the unrolled one, on the same batches."""
        method, distiller = self.unrolled.method, self.unrolled.method.distiller
        assert isinstance(distiller, UnrolledNet)
        current = method.augment(self.unrolled.batch)
        self.unrolled.step()  # the mode ``step`` uses the gradient of the last training step
        inner, outer = distiller.inner_batch(method), distiller.outer_batch(method, current)
        assert inner is not None
        weights = list(distiller.generator_net.parameters())

        def gradient(value: Tensor) -> Tensor:
            return torch.cat([g.flatten() for g in torch.autograd.grad(value, weights)]).double()

        expected = gradient(distiller.outer_loss(method, inner, outer))
        errors = {UNROLLED: {"relative_error": 0.0, "cosine": 1.0}}
        for mode in MODES:
            distiller.lookahead = mode
            found = gradient(DataDistillNet.outer_loss(distiller, method, inner, outer))
            errors[mode] = {
                "relative_error": float((found - expected).norm() / expected.norm()),
                "cosine": float(functional.cosine_similarity(found, expected, dim=0)),
            }
        return errors


class StepTimes(Callback):
    """Records the start time of each batch on rank 0.

    Args:
        clock: Returns the time in seconds.
        batches: Number of batches.
    """

    def __init__(self, clock: Clock, batches: int) -> None:
        self.clock = clock
        self.starts = torch.zeros(batches, dtype=torch.float64)
        self.starts.share_memory_()  # type: ignore[no-untyped-call]  # visible to the parent of a forked process
        self.recorded = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Record the time."""
        if trainer.is_global_zero:
            self.record()

    def record(self) -> None:
        """Record the time."""
        self.starts[self.recorded] = self.clock()
        self.recorded += 1

    def seconds(self, last: int) -> list[float]:
        """Durations of the last steps, each up to the start of the next."""
        seconds: list[float] = self.starts.diff()[-last:].tolist()
        return seconds


class ChannelMeans(Backbone):
    """A trivial network, to time the loop alone."""

    feature_dim = 3

    def forward(self, images: Tensor) -> Tensor:
        """The mean of each channel."""
        return images.mean(dim=(2, 3))


class BareER(LightningModule):
    """Minimal ER in Lightning: two prepared batches, one backward pass, SGD.

    Args:
        network: Maps images to logits.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        """Cross-entropy of both batches."""
        images, labels, old_images, old_labels = batch
        current = functional.cross_entropy(self.network(images), labels)
        return current + functional.cross_entropy(self.network(old_images), old_labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.03)


def time_loops(workload: Workload, has_network: bool, steps: int, rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds per step of three loops in turns: plain PyTorch, bare Lightning, and ours with all callbacks.

    Args:
        workload: Size of a step.
        has_network: Whether to use ResNet-18 or a trivial network.
        steps: Steps per loop and round.
        rounds: Number of rounds.
        clock: Returns the time in seconds.
    """
    loops = {PLAIN: _plain_loop, BARE: _bare_loop, OURS: _our_loop}
    seconds: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(rounds):
        backbone = ResNet18(width=workload.width) if has_network else ChannelMeans()
        for name, loop in loops.items():
            seconds[name] += loop(workload, backbone, steps, clock)
    return seconds


def _plain_loop(workload: Workload, backbone: Backbone, steps: int, clock: Clock) -> list[float]:
    times = StepTimes(clock, WARM_UP + steps)
    bare = _bare_er(workload, backbone).to(workload.device)
    optimizer = bare.configure_optimizers()
    for batch in _prepared_batches(workload, WARM_UP + steps):
        times.record()
        optimizer.zero_grad()
        loss = bare.training_step([tensor.to(workload.device) for tensor in batch], 0)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()
    return times.seconds(last=steps)


def _bare_loop(workload: Workload, backbone: Backbone, steps: int, clock: Clock) -> list[float]:
    times = StepTimes(clock, WARM_UP + steps)
    batches: Any = _prepared_batches(workload, WARM_UP + steps)  # a list can serve as a dataset
    trainer = workload.trainer(callbacks=[times], max_epochs=1)
    trainer.fit(_bare_er(workload, backbone), DataLoader(batches, batch_size=None))
    return times.seconds(last=steps)


def _our_loop(workload: Workload, backbone: Backbone, steps: int, clock: Clock) -> list[float]:
    """With progress bar, curves on disk, reservoir, metrics and checkpoints; in the second task."""
    times = StepTimes(clock, 2 * (WARM_UP + steps))
    with TemporaryDirectory() as folder, redirect_stdout(_Terminal()):
        trainer = workload.trainer(
            callbacks=[times, TaskProgressBar(), LastCheckpoint(Path(folder))],
            logger=CurveLogger(folder, "loop", version=""),
            log_every_n_steps=min(LOG_EVERY, steps),
            enable_progress_bar=True,
            enable_checkpointing=True,
        )
        trainer.fit(workload.method(ER, backbone=backbone), RandomImages(workload, WARM_UP + steps))
    return times.seconds(last=steps)


def _bare_er(workload: Workload, backbone: Backbone) -> BareER:
    return BareER(nn.Sequential(backbone, nn.Linear(backbone.feature_dim, workload.num_classes)))


def _prepared_batches(workload: Workload, number: int) -> list[list[Tensor]]:
    shape = (workload.batch, 3, workload.image_size, workload.image_size)
    images = [torch.randn(shape) for _ in range(2)]
    labels = [torch.randint(workload.num_classes, (workload.batch,)) for _ in range(2)]
    return [[images[0], labels[0], images[1], labels[1]]] * number


class _Terminal(StringIO):
    """The progress bar treats it as a terminal."""

    def isatty(self) -> bool:
        return True


def augmentations(workload: Workload) -> dict[str, Callable[[], object]]:
    """Random crops and flips of a batch, by us and by torchvision."""
    sequence = RandomImages(workload)
    images = workload.images(workload.batch)
    on_device = images.to(workload.device)
    generator = torch.Generator().manual_seed(0)
    transform = v2.Compose(
        [
            v2.RandomCrop(workload.image_size, sequence.padding),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(sequence.mean, sequence.std),
        ]
    )
    return {
        WHOLE_BATCH: lambda: sequence.transform(on_device, generator),
        PER_IMAGE: lambda: torch.stack([transform(image) for image in images]).to(workload.device),
    }
