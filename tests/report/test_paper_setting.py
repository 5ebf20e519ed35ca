"""A run stands beside a number of the paper only in the paper's setting; otherwise the reason is named."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ddn_lightning.report.paper import paper_target, why_not_the_papers
from ddn_lightning.reproduce.cell import Cell
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

ALPHA = "model.init_args.distiller.init_args.alpha"
WIDTH = "model.init_args.backbone.init_args.width"
NETWORK = "model.init_args.backbone.class_path"
EPOCHS = "data.init_args.epochs_per_task"
CONFIG = {  # as `ddn fit` records it
    NETWORK: "ddn_lightning.ResNet18",
    WIDTH: 64,
    "model.init_args.replay_batch_size": 32,
    "model.init_args.old_memory_weight": 0.0,
    EPOCHS: 1,
    "data.init_args.batch_size": 32,
    "data.init_args.class_order": None,
    "data.init_args.class_order_seed": None,
    "trainer.limit_train_batches": None,
    "trainer.overfit_batches": 0.0,
    "forgetting.statistics": "both",
}
RESULTS = {"method": "ER", "plugin": None, "dataset": "cifar10", "buffer_size": 200, "bwt": None, "aaa": None}
RESULTS |= {"acc": 40.0, "fm": 50.0, "seed": 1, "tasks_finished": 5, "seconds": 9.0, "versions": {}}
RESULTS |= {"class_names": None, "num_images": {"train": 50_000, "test": 10_000}, "image_shape": (3, 32, 32)}


def a_run(config: dict[str, Any] | None = None, tasks: int = 5, **results: Any) -> RecordedRun:
    whole = {**RESULTS, "matrix": torch.ones(tasks, tasks), **results}
    return RecordedRun("run", Path("run"), Results(**whole), {**CONFIG, **(config or {})})


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (a_run(), ("online", "cifar10", 200, "er")),
        (a_run({EPOCHS: 50}), ("offline", "cifar10", 200, "er")),
        (a_run({ALPHA: 1.0}, plugin="DataDistillNet"), ("online", "cifar10", 200, "er", "ddn")),
        (
            a_run({"model.init_args.distiller.init_args.epsilon": 0.5}, plugin="LabelSmoothing"),
            ("online", "cifar10", 200, "er", "label_smoothing", "epsilon=0.5"),
        ),
        (a_run(method="ICaRL"), ("online", "cifar10", 200, "icarl")),
        (a_run(tasks=10, dataset="cifar100", buffer_size=2000), ("online", "cifar100", 2000, "er")),
        (
            a_run(tasks=10, dataset="tiny_imagenet", buffer_size=2000, image_shape=(), num_images={}),  # of 0.1
            ("online", "tiny_imagenet", 2000, "er"),
        ),
        (a_run({"model.init_args.lr": 0.1}), ("online", "cifar10", 200, "er")),
        (a_run({"data.init_args.class_order": list(range(10))}), ("online", "cifar10", 200, "er")),
        (a_run({"trainer.limit_train_batches": 1.0}), ("online", "cifar10", 200, "er")),
    ],
)
def test_a_run_in_the_papers_setting_stands_beside_its_cell(run: RecordedRun, names: tuple[Any, ...]) -> None:
    assert why_not_the_papers(run) is None
    target = paper_target(run)
    assert target is not None
    assert target.cell == Cell(*names)
    if target.cell == Cell("online", "cifar10", 200, "er"):
        assert (target.acc, target.fm) == (36.05, 49.99)


def test_a_run_stands_only_beside_the_cell_that_its_options_make() -> None:
    online, offline = (Cell(setting, "cifar10", 200, "er") for setting in ("online", "offline"))
    assert why_not_the_papers(a_run(), online) is None
    assert why_not_the_papers(a_run(), offline) == "options of another cell"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (a_run({WIDTH: 20}), "width 20 instead of 64"),
        (a_run({NETWORK: "ddn_lightning.SmallNet"}), "SmallNet instead of ResNet18"),
        (RecordedRun("run", Path("run"), a_run().results, {EPOCHS: 1}), "an unknown network instead of ResNet18"),
        (a_run({EPOCHS: 5}), "epochs_per_task 5 instead of 1 or 50"),
        (a_run({EPOCHS: [1]}), "epochs_per_task [1] instead of 1 or 50"),
        (a_run({"data.init_args.class_order_seed": 3}), "class_order_seed 3 instead of none"),
        (a_run({"data.init_args.class_order": "pycil-1993"}), "another class order"),
        (a_run({"data.init_args.class_order": [1, 0, *range(2, 10)]}), "another class order"),
        (a_run(tasks=2), "2 tasks instead of 5"),
        (a_run(buffer_size=123), "ER with memory 123 is not in the paper"),
        (a_run(method="Own"), "Own with memory 200 is not in the paper"),
        (a_run(dataset="digits"), "digits is not among the paper's data"),
        (a_run(dataset="cifar10 (Blurry)"), "cifar10 (Blurry) is not among the paper's data"),
        (a_run({"trainer.limit_train_batches": 1}), "limit_train_batches 1 instead of all"),
        (a_run({"trainer.limit_val_batches": 0.5}), "limit_val_batches 0.5 instead of all"),
        (a_run({"trainer.overfit_batches": 2}), "overfit_batches 2 instead of 0"),
        (a_run({"data.init_args.validation_share": 0.1}), "validation_share 0.1 instead of none"),
        (a_run(num_images={"train": 1000, "test": 10_000}), "1,000 train images instead of 50,000"),
        (a_run(image_shape=(3, 16, 16)), "images of 16x16 instead of 32x32"),
        (a_run({"data.init_args.batch_size": 10}), "batch_size 10 instead of 32"),
        (a_run({"model.init_args.replay_batch_size": 64}), "replay_batch_size 64 instead of 32"),
        (a_run({"model.init_args.replay_weight": 2.0}), "replay_weight 2.0 instead of 1"),
        (a_run({"model.init_args.old_memory_weight": 1.0}), "old_memory_weight 1.0 instead of 0"),
        (a_run({"model.init_args.running_statistics": "current"}), "running_statistics current instead of all"),
        (a_run({"model.init_args.batches": "concatenated"}), "batches concatenated instead of separate"),
        (a_run({"model.init_args.momentum": 0.9}), "momentum 0.9 instead of 0"),
        (a_run({"model.init_args.weight_decay": 0.01}), "weight_decay 0.01 instead of 0"),
        (
            a_run({"model.init_args.memory.class_path": "ddn_lightning.RingBuffer"}),
            "memory RingBuffer instead of ReservoirBuffer",
        ),
        (a_run({"model.init_args.optimizer.class_path": "torch.optim.AdamW"}), "optimizer AdamW instead of SGD"),
        (
            a_run({"model.init_args.rand_augment.class_path": "x.RandAugment"}),
            "rand_augment RandAugment instead of none",
        ),
        (a_run({"data.init_args.flip": False}), "flip False instead of True"),
        (a_run({"trainer.precision": "bf16-mixed"}), "precision bf16-mixed instead of 32-true"),
        (
            a_run({ALPHA.replace("alpha", "outer"): "memory"}, plugin="DataDistillNet"),
            "outer memory instead of current_and_memory",
        ),
        (a_run({ALPHA.replace("alpha", "update_every"): 9}, plugin="DataDistillNet"), "update_every 9 instead of 1"),
        (a_run({ALPHA: 0.5}, plugin="DataDistillNet"), "alpha 0.5 instead of 1.0"),
        (
            a_run(forgetting_definition={"over": "previous", "reference": "first"}),
            "forgetting with reference first instead of best",
        ),
        (a_run(statistics="memory"), "calibrated instead of running BatchNorm statistics"),
        (a_run({WIDTH: 20, EPOCHS: 5}), "epochs_per_task 5 instead of 1 or 50, width 20 instead of 64"),
        (RecordedRun("run", Path("run")), "it has no results"),
    ],
)
def test_a_run_in_another_setting_stands_beside_none_and_says_why(run: RecordedRun, reason: str) -> None:
    assert why_not_the_papers(run) == reason
    assert paper_target(run) is None
