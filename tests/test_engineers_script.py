"""The script of an engineer who knows Lightning: own backbone, optimizer, logger, callback and data, no ddn command."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchvision.datasets import FakeData
from trials import offline_wandb, wandb_config

import ddn_lightning
from ddn_lightning import DERPlusPlus, TaskSequence
from ddn_lightning.deploy.export import onnx_session

pytest.importorskip("onnxruntime")
timm = pytest.importorskip("timm")
pytest.importorskip("wandb")

LR, STEPS = 0.002, (4, 6)  # two epochs of each task, in whole batches of 8


class TimmNet(nn.Module):
    """A network of timm without its head."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = timm.create_model(name, num_classes=0)
        self.feature_dim: int = self.net.num_features

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images)
        return features


class Rates(Callback):
    """Notes the learning rate of each step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*log_every_n_steps")
def test_it_trains_logs_saves_predicts_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    seed_everything(1, verbose=False)
    train, test = (FakeData(size, (3, 32, 32), 4, random_offset=offset) for size, offset in ((48, 0), (24, 1000)))
    data = TaskSequence.from_datasets(train, test, num_tasks=2, epochs_per_task=2, batch_size=8, drop_last=True)
    method = DERPlusPlus(
        TimmNet("test_resnet"),
        num_classes=data.num_classes,
        buffer_size=16,
        replay_batch_size=8,
        optimizer=partial(AdamW, lr=LR, weight_decay=0.05),
        lr_scheduler=partial(CosineAnnealingLR, T_max=STEPS[1]),
        lr_scheduler_interval="step",
        gradient_clip_val=1.0,
    )
    logger, watching, saving = offline_wandb(tmp_path), Rates(), ModelCheckpoint(tmp_path / "checkpoints")
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "max_epochs": -1}
    trainer = Trainer(logger=logger, callbacks=[watching, saving, LearningRateMonitor()], **quiet)
    trainer.fit(method, data)

    steps = [step for number in STEPS for step in range(number)]
    assert watching.rates == pytest.approx([LR * (1 + math.cos(math.pi * step / STEPS[1])) / 2 for step in steps])
    average = float(method.accuracy_matrix[-1].mean())
    assert logger.experiment.summary["average_accuracy"] == pytest.approx(average)
    recorded = wandb_config(logger)
    assert (recorded["method"], recorded["data"]) == (
        "ddn_lightning.DERPlusPlus",
        "ddn_lightning.data.split_dataset.SplitDataset",
    )
    assert (recorded["backbone"], recorded["seed"]) == (f"{__name__}.TimmNet", 1)
    assert (recorded["optimizer.lr"], recorded["lr_scheduler.T_max"]) == (LR, STEPS[1])

    loaded = ddn_lightning.load(saving.best_model_path, backbone=TimmNet("test_resnet"))
    images, labels = data.load(train=False)
    found = loaded.predict(images).labels
    per_task = [(found == labels)[labels // 2 == task].float().mean() for task in range(2)]
    assert 100 * float(torch.stack(per_task).mean()) == pytest.approx(average)
    assert list(tmp_path.glob("wandb/offline-run-*"))

    loaded.export(tmp_path / "model.onnx")
    session = onnx_session(tmp_path / "model.onnx")
    (probabilities,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert torch.equal(torch.from_numpy(probabilities).argmax(dim=1), found)
