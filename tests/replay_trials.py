"""Trials of Replay with a module of the user's: trainings on three tasks, and what is asserted of them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from lightning.pytorch import callbacks as given
from lightning.pytorch.plugins import MixedPrecision
from tiny import TinySequence, quiet_trainer, small_net
from torch import Tensor, nn
from torch.nn import functional
from trials import Row

from ddn_lightning import ER, Replay

Trained = tuple[LightningModule, Replay]


class Product(LightningModule):
    """A module as anybody writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(small_net(), nn.Linear(8, 6))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.net(images)
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor | None:
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        self.log("loss", functional.cross_entropy(self(batch[0]), batch[1]))

    test_step = validation_step

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


class Manual(Product):
    """Steps by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, batch_index)
        self.manual_backward(loss)
        optimizer.step()


class Brighter(Product):
    """Changes each batch on the device, and keeps the sizes."""

    def on_after_batch_transfer(self, batch: tuple[Tensor, Tensor], dataloader_idx: int) -> tuple[Tensor, Tensor]:
        self.sizes = [*getattr(self, "sizes", ()), len(batch[1])]
        return batch[0] + 0.1, batch[1]


def trained(
    *callbacks: Callback, kind: Callable[[], LightningModule] = Product, path: Path | None = None, **trainer: Any
) -> Trained:
    seed_everything(0, verbose=False)
    module, replay = kind(), Replay(buffer_size=10, replay_batch_size=5)
    fit = quiet_trainer(callbacks=[replay, *callbacks], **trainer).fit
    fit(module, TinySequence(batch_size=12, epochs_per_task=2), ckpt_path=path)
    return module, replay


@cache
def undisturbed() -> Trained:
    """The run that others are compared with."""
    return trained()


def same_numbers(run: Trained) -> None:
    for one, other in zip(run[0].parameters(), undisturbed()[0].parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(run[1].accuracy_matrix.nan_to_num(-1), undisturbed()[1].accuracy_matrix.nan_to_num(-1))


def all_rows(run: Trained) -> None:
    assert (~run[1].accuracy_matrix.isnan()).sum() == 6


def fits(name: str, claim: str, check: Callable[[Trained], None], *callbacks: Callback, **options: Any) -> Row:
    """A row about a training with these callbacks and options of the Trainer."""
    return Row(name, claim, lambda folder: check(trained(*callbacks, **options)))


def resumes(folder: Path) -> None:
    saving = given.ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1, filename="{step}")
    trained(saving, enable_checkpointing=True)
    same_numbers(trained(path=folder / "step=5.ckpt"))


def evaluates(folder: Path) -> None:
    module, _ = undisturbed()
    for evaluate in (quiet_trainer().validate, quiet_trainer().test):
        assert evaluate(module, TinySequence(), verbose=False)[0].keys() == {"loss"}
    predicted = quiet_trainer().predict(module, TinySequence())
    assert torch.cat(predicted).shape == (72, 6)  # type: ignore[arg-type]


def is_averaged(run: Trained) -> None:
    module, replay = run
    data = TinySequence()
    data.setup("test")
    with torch.no_grad():
        hits = module(data.transform(data.test_set.images)).argmax(dim=1) == data.test_set.labels
    torch.testing.assert_close(100 * hits.float().mean(), replay.accuracy_matrix[-1].mean())  # equal numbers of images


def keeps_best(folder: Path) -> None:
    same_numbers(trained(given.ModelCheckpoint(folder, monitor="loss"), enable_checkpointing=True))
    assert len(list(folder.iterdir())) == 1


def compiled() -> LightningModule:
    return torch.compile(Product(), backend="eager")  # type: ignore[return-value]  # Lightning takes it for the module


def replays_twice(folder: Path) -> None:
    quiet_trainer(callbacks=[Replay()]).fit(ER(small_net(), 6), TinySequence(batch_size=12))


def sees_joined(run: Trained) -> None:
    sizes = run[0].sizes
    assert isinstance(sizes, list)
    assert sizes.count(17) == 11


REPLAY = [
    fits("`precision='bf16-mixed'`", "Weights stay in single precision.", all_rows, precision="bf16-mixed"),
    fits("`precision='16-mixed'`", "Lightning scales.", all_rows, plugins=[MixedPrecision("16-mixed", "cpu")]),
    fits("`accumulate_grad_batches=2`", "A step after two batches.", all_rows, accumulate_grad_batches=2),
    fits("`gradient_clip_val=0.5`", "Lightning clips.", all_rows, gradient_clip_val=0.5),
    fits("`deterministic=True`", "Same numbers.", same_numbers, deterministic=True),
    fits("a module that steps by hand", "Same numbers.", same_numbers, kind=Manual),
    fits("a module compiled by `torch.compile`", "Trains and is measured compiled.", all_rows, kind=compiled),
    fits("`on_after_batch_transfer` of the module", "Receives the joined batch.", sees_joined, kind=Brighter),
    fits("`EMAWeightAveraging`", "Measured with averaged weights.", is_averaged, given.EMAWeightAveraging(decay=0.9)),
    fits("`GradientAccumulationScheduler`", "Works.", all_rows, given.GradientAccumulationScheduler({0: 2})),
    Row("`ModelCheckpoint(monitor='loss')`", "Keeps the best of the whole sequence. Same numbers.", keeps_best),
    Row("`fit(..., ckpt_path=...)` after a stop", "Same numbers.", resumes),
    Row("`validate`, `test`, `predict`", "The module's own steps get batches in the form of training.", evaluates),
    fits("`max_epochs=5`", "", all_rows, max_epochs=5),
    fits("`val_check_interval=0.5`", "", all_rows, val_check_interval=0.5),
    fits("`EarlyStopping`", "", all_rows, given.EarlyStopping("loss")),
    fits("`StochasticWeightAveraging`", "", all_rows, given.StochasticWeightAveraging(0.1)),
    fits("`LearningRateFinder`", "", all_rows, given.LearningRateFinder()),
    fits("`BatchSizeFinder`", "", all_rows, given.BatchSizeFinder()),
    Row("a method such as `ER`", "", replays_twice),
]
