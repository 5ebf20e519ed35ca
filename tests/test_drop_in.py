"""What a user of Lightning brings along works, or is refused before training with the reason and what to do.

Each row of docs/drop_in.md is tried here. To write the file anew: ``python tests/test_drop_in.py``.
"""

import tempfile
import warnings
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import blocks
from lightning.pytorch import Callback
from lightning.pytorch import callbacks as given
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from replay_trials import REPLAY
from torch.optim import LBFGS, SGD, AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from trials import (
    Check,
    PlainLogger,
    Row,
    called_in_order,
    clipped_to,
    evaluates,
    fits,
    fits_twice,
    hparams_file,
    is_tuned,
    keeps,
    logs,
    monitors_rates,
    offline_wandb,
    overfits,
    plain_arguments,
    rates,
    resumes,
    resumes_finetuning,
    resumes_with_another_optimizer,
    resumes_with_another_rate,
    same_numbers,
    sees,
    sees_every_task,
    steps_and_tasks,
    wandb_config,
    weights_of,
)

from ddn_lightning import ER, DataDistillNet

PAGE = Path(__file__).parents[1] / "docs" / "drop_in.md"


def trainer(claim: str = "", check: Check | None = None, **options: Any) -> Row:
    """A row about options of the Trainer."""
    name = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return Row(f"`{name}`", claim, fits(check, trainer=options))


def callback(name: str, made: Callback, claim: str = "", **options: Any) -> Row:
    """A row about a callback of Lightning, which gives the same numbers or is refused."""
    return Row(f"`{name}`", claim, fits(same_numbers, trainer={"callbacks": [made], **options}))


class OwnAdamW(ER):
    """Overrides the optimizer with two parameter groups."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.backbone.parameters(), "lr": 1e-4}, {"params": self.head.parameters()}]
        return AdamW(groups, lr=2e-3)


class TwoOptimizers(ER):
    """Overrides the optimizer with one for the backbone and one for the head."""

    def configure_optimizers(self) -> Any:
        return [SGD(self.backbone.parameters(), 0.1), AdamW(self.head.parameters())]


SAME = "Same numbers."
HARMLESS: list[dict[str, Any]] = [
    {"deterministic": True},
    {"benchmark": True},
    {"detect_anomaly": True},
    {"profiler": "simple"},
    {"barebones": True},
    {"inference_mode": False},
    {"max_time": "00:01:00:00"},
    {"max_epochs": 6},
    {"check_val_every_n_epoch": 2},
    {"num_sanity_val_steps": 2},
    {"log_every_n_steps": 1},
    {"reload_dataloaders_every_n_epochs": 3},
    {"use_distributed_sampler": True},
    {"enable_model_summary": True},
]
TRAINER = [
    *(trainer(SAME, same_numbers, **options) for options in HARMLESS),
    trainer(
        "Same numbers, if the batch has images of each task; otherwise neither ACC nor FM.",
        same_numbers,
        limit_val_batches=1,
    ),
    trainer("Trains on one batch of each epoch.", steps_and_tasks(6, 3), limit_train_batches=1),
    Row(
        "`overfit_batches=1`",
        "Trains on the same batch in each epoch of a task.",
        sees(overfits, trainer={"overfit_batches": 1}),
    ),
    Row(
        "`fast_dev_run=True`",
        "Trains on one batch of every task, and evaluates.",
        sees(sees_every_task(1), trainer={"fast_dev_run": True}),
    ),
    Row(
        "`fast_dev_run=2`",
        "Trains on two batches of every task, and evaluates.",
        sees(sees_every_task(2), trainer={"fast_dev_run": 2}),
    ),
    trainer("Stops after five batches; the run is incomplete, and can be resumed.", steps_and_tasks(5, 1), max_steps=5),
    trainer(max_epochs=5),
    trainer(val_check_interval=0.5),
    trainer(check_val_every_n_epoch=3),
    trainer(gradient_clip_val=0.5),
    trainer(gradient_clip_algorithm="value"),
    trainer(accumulate_grad_batches=4),
    trainer("Trains in double precision.", weights_of(torch.float64), precision="64-true"),
    trainer("Weights stay in single precision.", weights_of(torch.float32), precision="bf16-mixed"),
    trainer("Trains in half precision; accuracies stay in single.", weights_of(torch.bfloat16), precision="bf16-true"),
    Row("`precision='16-mixed'`", "", fits(trainer={"plugins": [MixedPrecision("16-mixed", "cpu")]})),
    Row(
        "`precision='bf16-true'` with DDN",
        "",
        fits(trainer={"precision": "bf16-true"}, method={"distiller": DataDistillNet()}),
    ),
    Row("a second `fit` with the same Trainer", "", partial(fits_twice, on_new_trainer=False)),
    Row("a second `fit` with a new Trainer", "", partial(fits_twice, on_new_trainer=True)),
    Row("`fit(..., ckpt_path=...)` after a stop", SAME, resumes),
    Row(
        "`validate`, `test`, `predict`",
        "The accuracies of the matrix' last row; a class for each test image.",
        evaluates,
    ),
    Row("`Tuner.lr_find`", "", is_tuned("lr_find")),
    Row("`Tuner.scale_batch_size`", "", is_tuned("scale_batch_size")),
]

OPTIMIZERS = [
    Row(
        "`ER(..., optimizer=partial(AdamW, lr=0.002))`",
        "Each step has this learning rate.",
        sees(rates(0.002), method={"optimizer": partial(AdamW, lr=0.002)}),
    ),
    Row(
        "`ER(..., lr_scheduler=partial(StepLR, step_size=1, gamma=0.5))`",
        "Steps after each epoch, and restarts at each task.",
        sees(
            rates(0.08, 0.08, 0.04, 0.04),
            method={"optimizer": partial(SGD, lr=0.08), "lr_scheduler": partial(StepLR, step_size=1, gamma=0.5)},
        ),
    ),
    Row(
        "`configure_optimizers` overridden, two groups",
        "Each group keeps its learning rate.",
        sees(rates([1e-4, 2e-3]), kind=OwnAdamW),
    ),
    Row(
        "`ER(..., gradient_clip_val=0.05)`",
        "No step has a gradient of a larger norm.",
        sees(clipped_to(0.05), method={"gradient_clip_val": 0.05}),
    ),
    Row(
        "`fit(..., ckpt_path=...)` with another `lr` of the optimizer",
        "Runs with what is given, and notes it.",
        resumes_with_another_rate,
    ),
    Row(
        "`fit(..., ckpt_path=...)` with another optimizer",
        "",
        resumes_with_another_optimizer,
    ),
    Row("`ER(..., optimizer=LBFGS)`", "", fits(method={"optimizer": LBFGS})),
    Row("`configure_optimizers` overridden, two optimizers", "", fits(kind=TwoOptimizers)),
    Row("`ER(..., lr_scheduler=ReduceLROnPlateau)`", "", fits(method={"lr_scheduler": ReduceLROnPlateau})),
    Row(
        "`ER(..., optimizer=AdamW)` with DDN",
        "",
        fits(method={"optimizer": AdamW, "distiller": DataDistillNet()}),
    ),
    Row(
        "`on_before_backward`, `on_after_backward`, `on_before_optimizer_step`",
        "Called once a step, in this order, the last two with the gradients.",
        sees(called_in_order),
    ),
]

LAST, ALL = {"epoch=5-step=12.ckpt"}, {f"epoch={n - 1}-step={2 * n}.ckpt" for n in range(1, 7)}
CALLBACKS = [
    callback("StochasticWeightAveraging", given.StochasticWeightAveraging(0.1)),
    callback("WeightAveraging", given.WeightAveraging()),
    callback("EMAWeightAveraging", given.EMAWeightAveraging()),
    callback("EarlyStopping", given.EarlyStopping("train/loss")),
    callback("ModelPruning", given.ModelPruning("l1_unstructured", amount=0.5)),
    callback("GradientAccumulationScheduler", given.GradientAccumulationScheduler({0: 2})),
    callback("LearningRateFinder", given.LearningRateFinder()),
    callback("BatchSizeFinder", given.BatchSizeFinder()),
    Row("`ModelCheckpoint(monitor='average_accuracy', mode='max')`", "", keeps(set(), monitor="average_accuracy")),
    Row("`ModelCheckpoint()`", "Keeps the last model. Same numbers.", keeps(LAST)),
    Row(
        "`ModelCheckpoint(monitor='epoch', mode='max', save_top_k=2)`",
        "Keeps the last two evaluated models. Same numbers.",
        keeps({"epoch=3-step=8.ckpt", *LAST}, monitor="epoch", mode="max", save_top_k=2),
    ),
    Row(
        "`ModelCheckpoint(every_n_train_steps=2, save_top_k=-1)`",
        "Keeps all models. Same numbers.",
        keeps(ALL, every_n_train_steps=2, save_top_k=-1),
    ),
    Row(
        "`ModelCheckpoint(train_time_interval=timedelta(minutes=5))`",
        "",
        keeps(set(), train_time_interval=timedelta(minutes=5)),
    ),
    Row(
        "`BackboneFinetuning(unfreeze_backbone_at_epoch=2, backbone_initial_lr=0.001)`",
        "The backbone trains from the third epoch on, with its own learning rate.",
        sees(
            rates(*[[0.1]] * 4, *[[0.1, 0.001]] * 8),
            given.BackboneFinetuning(2, lambda epoch: 1.0, backbone_initial_lr=0.001),
        ),
    ),
    Row(
        "`BackboneFinetuning`, stopped after it has unfrozen and resumed",
        "The numbers of the run without a stop.",
        resumes_finetuning,
    ),
    Row("`LearningRateMonitor`", "Logs the learning rate of each step. Same numbers.", monitors_rates),
    callback("Timer", given.Timer(), SAME),
    callback("TQDMProgressBar", given.TQDMProgressBar(), SAME, enable_progress_bar=True),
    callback("RichProgressBar", given.RichProgressBar(), SAME, enable_progress_bar=True),
    callback("RichModelSummary", given.RichModelSummary(), SAME, enable_model_summary=True),
]

RECORDED = "Receives classes and arguments of method, backbone, distiller and data, and the seed. Same numbers."
LOGGERS = [
    Row("`CSVLogger`", RECORDED, logs(CSVLogger, hparams_file)),
    Row("`TensorBoardLogger`", RECORDED, logs(TensorBoardLogger, hparams_file)),
    Row("`WandbLogger(offline=True)`", RECORDED, logs(offline_wandb, wandb_config)),
    Row("a `Logger` of your own, with the calls of MLflow's and Comet's", RECORDED, logs(PlainLogger, plain_arguments)),
]

TABLE = {
    "Your module with Replay": REPLAY,
    "Trainer": TRAINER,
    "Optimizers": OPTIMIZERS,
    "Callbacks": CALLBACKS,
    "Loggers": LOGGERS,
}
NEEDS = {"`TensorBoardLogger`": "tensorboard", "`WandbLogger(offline=True)`": "wandb"}
ROWS = [
    pytest.param(
        row, id=row.name, marks=[pytest.mark.slow] if "Wandb" in row.name or "compiled" in row.name else []
    )  # the former is in test_engineers_script too
    for rows in TABLE.values()
    for row in rows
]


@pytest.mark.filterwarnings("ignore")  # Lightning's advice about batches as few as these
@pytest.mark.parametrize("row", ROWS)
def test_the_page_says_what_the_trial_gives(row: Row, tmp_path: Path) -> None:
    if row.name in NEEDS:
        pytest.importorskip(NEEDS[row.name])
    assert row.line(tmp_path) in PAGE.read_text().splitlines()


def test_the_page_has_these_rows_and_no_others() -> None:
    text = PAGE.read_text()
    shown = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if " | " in line]
    assert shown == [name for heading, rows in TABLE.items() for name in (heading, *(row.name for row in rows))]


@pytest.mark.filterwarnings("ignore")
def test_the_module_at_the_top_learns() -> None:
    (example,) = blocks(PAGE.read_text(), "python")
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(example, PAGE.name, "exec"), names)
    assert names["replay"].accuracy_matrix[-1].isfinite().all()


def page() -> str:
    """The page, its text as it is and its tables from trying everything."""
    parts = [PAGE.read_text().partition("\n| ")[0]]
    for heading, rows in TABLE.items():
        lines = [f"| {heading} | | what happens |", "|---|---|---|"]
        for row in rows:
            if row.name in NEEDS and not find_spec(NEEDS[row.name]):
                raise SystemExit(f"{NEEDS[row.name]} must be installed to try {row.name}")
            with tempfile.TemporaryDirectory() as folder:
                lines.append(row.line(Path(folder)))
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    PAGE.write_text(page())
