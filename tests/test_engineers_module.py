"""A LightningModule as its team wrote it, to which nothing is added but one callback: Replay.

A network of timm, AdamW with warm-up, half precision, averaged weights, accumulated and clipped gradients, own metrics.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics.classification import MulticlassAccuracy
from torchvision.datasets import FakeData

from ddn_lightning import Replay, TaskSequence

timm = pytest.importorskip("timm")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*log_every_n_steps", "ignore:.*callbacks used to create"),
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step", "ignore::DeprecationWarning"),
]
QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
OURS: dict[str, Any] = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}


class Classifier(LightningModule):
    """Knows nothing of tasks or memories."""

    def __init__(self, num_classes: int = 6, lr: float = 0.01, warmup: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = timm.create_model("test_resnet", num_classes=num_classes, drop_rate=0.1)
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.model(images)
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels, label_smoothing=0.1)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        images, labels = batch
        self.accuracy(self(images), labels)
        self.log("accuracy", self.accuracy)

    test_step = validation_step

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        return self(batch[0]).argmax(dim=1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams["lr"], weight_decay=0.05)
        scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.hparams["warmup"]))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def data(num_classes: int = 6, offset: int = 0) -> TaskSequence:
    """Half as many tasks as classes, of 16 images a class."""
    train, test = (FakeData(8 * num_classes, (3, 32, 32), num_classes, random_offset=offset + s) for s in (0, 1000))
    return TaskSequence.from_datasets(train, test, num_classes // 2, epochs_per_task=2, batch_size=4, drop_last=True)


def trained(
    *callbacks: Callback, path: Path | None = None, sequence: TaskSequence | None = None, **options: Any
) -> tuple[Classifier, Replay, Trainer]:
    seed_everything(0, verbose=False)
    module, replay = Classifier(10), Replay(buffer_size=12, replay_batch_size=4)
    options = {"logger": False, "enable_checkpointing": False, **QUIET, **OURS, **options}
    trainer = Trainer(max_epochs=-1, callbacks=[replay, EMAWeightAveraging(decay=0.9), *callbacks], **options)
    trainer.fit(module, sequence or data(), ckpt_path=path)
    return module, replay, trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, Replay, Trainer, Path]:
    folder = tmp_path_factory.mktemp("engineer")
    saving = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=2, save_top_k=-1, filename="{step}")
    logger = CSVLogger(folder)
    callbacks = (saving, LearningRateMonitor())
    return *trained(*callbacks, logger=logger, enable_checkpointing=True, log_every_n_steps=1), folder


def test_it_trains_measures_and_logs(run: tuple[Classifier, Replay, Trainer, Path]) -> None:
    module, replay, trainer, folder = run
    assert (~replay.accuracy_matrix.isnan()).sum() == 6
    (found,) = Trainer(logger=False, **QUIET, precision="bf16-mixed").test(module, data(), verbose=False)
    assert 100 * found["accuracy"] == pytest.approx(float(replay.accuracy_matrix[-1] @ shares()), abs=1e-3)
    columns = next(folder.rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    assert {"loss", "accuracy", "lr-AdamW", "average_accuracy", "forgetting", "val/accuracy/task_1"} <= set(columns)
    assert trainer.global_step == sum(-(-batches // 2) for batches in batches_of_epochs())


def shares() -> Tensor:
    """The share of each task in the test images."""
    sequence = data()
    sequence.setup("test")
    assert sequence.test_set.tasks is not None
    return torch.bincount(sequence.test_set.tasks) / len(sequence.test_set)


def batches_of_epochs() -> list[int]:
    sequence = data()
    sequence.setup("fit")
    return [len(sequence.training_samples(task)) // 4 for task in range(3) for _ in range(2)]


def test_it_resumes_exactly(run: tuple[Classifier, Replay, Trainer, Path]) -> None:
    module, replay, _, folder = run
    resumed, other, _ = trained(path=folder / "checkpoints" / "step=6.ckpt")
    assert all(
        torch.equal(a, b) for a, b in zip(module.state_dict().values(), resumed.state_dict().values(), strict=True)
    )
    assert torch.equal(replay.accuracy_matrix.nan_to_num(-1), other.accuracy_matrix.nan_to_num(-1))


def test_two_processes_hold_one_memory_and_one_model(run: tuple[Classifier, Replay, Trainer, Path]) -> None:
    module = run[0]
    two, _, trainer = trained(devices=2, strategy="ddp_fork")
    assert trainer.callback_metrics["accuracy_matrix"].isfinite().sum() == 6
    assert two.state_dict().keys() == module.state_dict().keys()


def test_it_grows_by_classes_that_its_head_has_room_for(run: tuple[Classifier, Replay, Trainer, Path]) -> None:
    _, replay, trainer, folder = run
    trainer.save_checkpoint(folder / "learned.ckpt")
    both = data().followed_by(data(10, offset=5000))
    _, grown, _ = trained(path=folder / "learned.ckpt", sequence=both)
    assert torch.equal(grown.accuracy_matrix[:3, :3].nan_to_num(-1), replay.accuracy_matrix.nan_to_num(-1))
    assert grown.accuracy_matrix[-1].isfinite().all()


def test_it_exports_and_predicts_as_before(run: tuple[Classifier, Replay, Trainer, Path], tmp_path: Path) -> None:
    module = run[0].eval()
    predicted = Trainer(logger=False, **QUIET).predict(module, data())
    assert sum(map(len, predicted or [])) == 48
    images = torch.randn(2, 3, 32, 32)
    torch.export.save(torch.export.export(module, (images,)), tmp_path / "model.pt2")
    scores = torch.export.load(tmp_path / "model.pt2").module()(images)
    torch.testing.assert_close(scores, module(images))
