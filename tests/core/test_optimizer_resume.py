"""A resumed run restores what was configured exactly, and runs what is given anew instead of what it replaces."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import build
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BackboneFinetuning
from test_resume import assert_equal, outcome, sequence
from tiny import Fit, TinySequence, small_net
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from ddn_lightning import ER, ConfigurationError, DataDistillNet

Given = dict[str, Any]
STEP: Given = {"lr_scheduler_interval": "step"}
ADAMW = partial(AdamW, lr=0.01)
COSINE = partial(CosineAnnealingLR, T_max=7)


def short() -> TinySequence:
    """Two batches an epoch, four a task, twelve in all."""
    return TinySequence(epochs_per_task=2, batch_size=12)


def stopped_at(fit: Fit, steps: int, folder: Path, make: Callable[[], ER], data: Any, **trainer: Any) -> Path:
    fit(make, data, max_steps=steps, **trainer).trainer.save_checkpoint(folder / "stopped.ckpt")
    return folder / "stopped.ckpt"


def two_groups(parameters: Any) -> AdamW:
    *first, weight, bias = parameters
    return AdamW([{"params": first, "lr": 1e-3}, {"params": [weight, bias], "weight_decay": 0.1}], lr=5e-3)


def chained(optimizer: Any) -> ChainedScheduler:
    return ChainedScheduler([LinearLR(optimizer, 0.1, total_iters=3), ExponentialLR(optimizer, 0.9)], optimizer)


def warmed_up(optimizer: Any) -> SequentialLR:
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=1), CosineAnnealingLR(optimizer, 2)], [1])


MOVING: dict[str, Given] = {
    "OneCycle moves betas": {"optimizer": ADAMW, "lr_scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=10)},
    "two groups": {"optimizer": two_groups, "lr_scheduler": partial(OneCycleLR, max_lr=[2e-3, 1e-2], total_steps=10)},
    "Cyclic moves momentum": {
        "momentum": 0.9,
        "lr_scheduler": partial(CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3),
    },
    "chained by epoch": {"lr_scheduler": chained, "lr_scheduler_interval": "epoch"},
    "warm-up by epoch": {"lr_scheduler": warmed_up, "lr_scheduler_interval": "epoch"},
    "milestones": {"lr_scheduler": partial(MultiStepLR, milestones=[2, 3])},
    "a tensor as rate": {"optimizer": lambda p: Adam(p, lr=torch.tensor(1e-3), foreach=False)},
}


@pytest.mark.parametrize("given", MOVING.values(), ids=MOVING.keys())
def test_options_that_a_schedule_moves_resume_exactly(fit: Fit, tmp_path: Path, given: Given) -> None:
    def make() -> ER:
        return build(ER, **{**STEP, **given})

    path = stopped_at(fit, 7, tmp_path, make, sequence())
    assert_equal(outcome(fit(make, sequence(), ckpt_path=path, seed=1)), outcome(fit(make, sequence())))


class Options(Callback):
    """Options of all groups in each step, by the number of the step."""

    def __init__(self) -> None:
        self.seen: dict[int, list[dict[str, Any]]] = {}

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: torch.optim.Optimizer) -> None:
        names = ("lr", "momentum", "betas", "weight_decay")
        kept = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
        self.seen[trainer.global_step] = kept


CHANGES: dict[str, tuple[Given, Given, str]] = {
    "lr": (
        {"optimizer": ADAMW},
        {"optimizer": partial(AdamW, lr=1e-5)},
        "optimizer.lr=1e-05 (was 0.01)",
    ),
    "weight decay": (
        {"optimizer": ADAMW},
        {"optimizer": partial(AdamW, lr=0.01, weight_decay=0.5)},
        "optimizer.weight_decay=0.5 (was 0.01)",
    ),
    "betas": (
        {"optimizer": ADAMW},
        {"optimizer": partial(AdamW, lr=0.01, betas=(0.5, 0.9))},
        "optimizer.betas=[0.5, 0.9] (was [0.9, 0.999])",
    ),
    "T_max": (
        {"lr_scheduler": COSINE, **STEP},
        {"lr_scheduler": partial(CosineAnnealingLR, T_max=3), **STEP},
        "lr_scheduler.T_max=3 (was 7)",
    ),
    "another schedule": (
        {"lr_scheduler": COSINE},
        {"lr_scheduler": partial(StepLR, step_size=1)},
        "lr_scheduler=StepLR (was CosineAnnealingLR)",
    ),
    "a composed schedule": (
        {"lr_scheduler": COSINE, **STEP},
        {"lr_scheduler": warmed_up, **STEP},
        "lr_scheduler=SequentialLR (was CosineAnnealingLR)",
    ),
    "no schedule": (
        {"optimizer": ADAMW, "lr_scheduler": COSINE, **STEP},
        {"optimizer": ADAMW},
        "lr_scheduler=None (was CosineAnnealingLR)",
    ),
    "a first schedule": ({}, {"lr_scheduler": COSINE, **STEP}, "lr_scheduler=CosineAnnealingLR (was None)"),
    "lr of a schedule": (
        {"lr_scheduler": COSINE, **STEP},
        {"lr_scheduler": COSINE, **STEP, "lr": 0.01},
        "lr=0.01 (was 0.03)",
    ),
    "interval": (
        {"lr_scheduler": COSINE},
        {"lr_scheduler": COSINE, **STEP},
        "lr_scheduler_interval=step (was epoch)",
    ),
}


@pytest.mark.parametrize("steps", [6, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("before", "now", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_what_is_given_at_a_resume_runs_and_is_noted(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: Given, now: Given, said: str, steps: int
) -> None:
    path = stopped_at(fit, steps, tmp_path, lambda: build(ER, **before), short())
    whole, resumed = Options(), Options()
    fit(lambda: build(ER, **now), short(), callbacks=[whole])
    capsys.readouterr()
    fit(lambda: build(ER, **now), short(), callbacks=[resumed], ckpt_path=path)
    assert resumed.seen == {step: options for step, options in whole.seen.items() if step >= steps}
    assert said in capsys.readouterr().err


def test_an_overridden_schedule_that_changes_runs_from_the_beginning_of_the_run(fit: Fit, tmp_path: Path) -> None:
    class Own(ER):
        gamma = 0.9

        def configure_optimizers(self) -> Any:
            optimizer = SGD(self.parameters(), lr=1.0)
            return [optimizer], [{"scheduler": ExponentialLR(optimizer, self.gamma), "interval": "step"}]

    class Changed(Own):
        gamma = 0.5

    Changed.__name__ = "Own"
    path = stopped_at(fit, 6, tmp_path, lambda: build(Own), short())
    seen = Options()
    fit(lambda: build(Changed), short(), callbacks=[seen], ckpt_path=path)
    assert [groups[0]["lr"] for groups in seen.seen.values()] == [0.5**step for step in range(6, 12)]


def test_an_unchanged_optimizer_is_resumed_without_a_note(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make() -> ER:
        return build(ER, optimizer=ADAMW, lr_scheduler=COSINE)

    path = stopped_at(fit, 3, tmp_path, make, short())
    fit(make, short(), ckpt_path=path)
    assert "resuming with other" not in capsys.readouterr().err


def test_changed_options_of_a_distiller_are_noted(fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stopped_at(fit, 3, tmp_path, lambda: build(ER, DataDistillNet), short())
    fit(lambda: build(ER, partial(DataDistillNet, lr=0.5)), short(), ckpt_path=path)
    assert "checkpoint's: distiller.lr=0.5 (was " in capsys.readouterr().err


def test_a_rate_that_a_callback_has_lowered_stays_low_after_a_resume(fit: Fit, tmp_path: Path) -> None:
    class Lower(Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.optimizers[0].param_groups[0]["lr"] = 1e-4

    seen = Options()
    path = stopped_at(fit, 5, tmp_path, lambda: build(ER, optimizer=ADAMW), short(), callbacks=[Lower()])
    fit(lambda: build(ER, optimizer=ADAMW), short(), callbacks=[Lower(), seen], ckpt_path=path)
    assert {groups[0]["lr"] for groups in seen.seen.values()} == {1e-4}


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"optimizer": ADAMW}, "the checkpoint's optimizer is SGD, got AdamW"),
        ({"optimizer": ADAMW}, {}, "the checkpoint's optimizer is AdamW, got SGD"),
        (
            {"optimizer": ADAMW},
            {"optimizer": two_groups},
            "must have the checkpoint's number of parameter groups, 1, got 2",
        ),
    ],
)
def test_another_optimizer_is_refused_at_a_resume(
    fit: Fit, tmp_path: Path, before: Given, now: Given, message: str
) -> None:
    path = stopped_at(fit, 3, tmp_path, lambda: build(ER, **before), short())
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: build(ER, **now), short(), ckpt_path=path)


class AddGroup(Callback):
    """Gives the head's bias, which the optimizer leaves out, a group of its own."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        trainer.optimizers[0].add_param_group({"params": [module.head.bias], "lr": 0.5})


class Headless(ER):
    """Leaves the head's bias to a callback."""

    def configure_optimizers(self) -> Any:
        return SGD([p for p in self.parameters() if p is not self.head.bias], lr=0.03, momentum=0.9)


def test_a_group_that_a_callback_adds_at_the_start_resumes_exactly(fit: Fit, tmp_path: Path) -> None:
    path = stopped_at(fit, 5, tmp_path, lambda: build(Headless), sequence(), callbacks=[AddGroup()])
    resumed = fit(lambda: build(Headless), sequence(), callbacks=[AddGroup()], ckpt_path=path, seed=1)
    assert_equal(outcome(resumed), outcome(fit(lambda: build(Headless), sequence(), callbacks=[AddGroup()])))


def test_a_group_that_is_missing_at_a_resume_is_named(fit: Fit, tmp_path: Path) -> None:
    path = stopped_at(fit, 5, tmp_path, lambda: build(Headless), sequence(), callbacks=[AddGroup()])
    with pytest.raises(
        ConfigurationError, match=r"number of parameter groups, 2, got 1: a callback .* in on_fit_start"
    ):
        fit(lambda: build(Headless), sequence(), ckpt_path=path)


@pytest.mark.filterwarnings("ignore:The provided params to be frozen already exist")  # BatchNorm's
def test_backbone_finetuning_resumes_exactly_however_often(fit: Fit, tmp_path: Path) -> None:
    def run(**arguments: Any) -> ER:
        unfreeze = BackboneFinetuning(1, lambda epoch: 1.5, backbone_initial_lr=1e-3)
        method = fit(lambda: build(ER, momentum=0.9), sequence(), callbacks=[unfreeze], **arguments)
        assert isinstance(method, ER)
        return method

    path: Path | None = None
    for steps in (1, 7, 12):  # while the backbone is frozen, and twice after
        run(max_steps=steps, ckpt_path=path).trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        path = tmp_path / f"{steps}.ckpt"
    assert_equal(outcome(run(ckpt_path=path, seed=1)), outcome(run()))


def test_a_distillers_optimizer_resumes_beside_an_own_schedule(fit: Fit, tmp_path: Path) -> None:
    def make() -> ER:
        return build(ER, DataDistillNet, backbone=small_net(), lr_scheduler=COSINE, **STEP)

    path = stopped_at(fit, 7, tmp_path, make, sequence())
    assert_equal(outcome(fit(make, sequence(), ckpt_path=path, seed=1)), outcome(fit(make, sequence())))


def test_a_parameter_outside_the_method_is_refused(fit: Fit) -> None:
    class Foreign(Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            trainer.optimizers[0].add_param_group({"params": [nn.Parameter(torch.zeros(3))]})

    with pytest.raises(ConfigurationError, match=r"1 of \d+ parameters of the optimizer .* not the method's"):
        fit(lambda: build(ER), callbacks=[Foreign()])
