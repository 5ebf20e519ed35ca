"""Optimizers, schedules and clipping run as the user configures them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import build
from lightning.pytorch import Callback
from test_resume import assert_equal, outcome, sequence
from tiny import Fit, TinySequence, quiet_trainer
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from ddn_lightning import ER, ConfigurationError, ReplayMethod


class Rates(Callback):
    """The learning rate of each step, just before it is taken."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.seen.append(round(optimizer.param_groups[0]["lr"], 6))


def test_an_optimizer_by_argument_equals_an_override(fit: Fit) -> None:
    class ByHand(ER):
        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [AdamW(self.parameters(), lr=0.002, weight_decay=0.1)]

    given = fit(lambda: build(ER, optimizer=lambda p: AdamW(p, lr=0.002, weight_decay=0.1)), sequence())
    by_hand = fit(lambda: build(ByHand), sequence())
    plain = fit(lambda: build(ER), sequence())
    assert isinstance(given.trainer.optimizers[0], AdamW)
    assert_equal(outcome(given), outcome(by_hand))
    assert not torch.equal(given.head.weight, plain.head.weight)


@pytest.mark.parametrize(("interval", "expected"), [("step", [1.0, 0.5, 0.25, 0.125]), ("epoch", [1.0, 1.0, 0.5, 0.5])])
def test_a_schedule_restarts_at_each_task(fit: Fit, interval: str, expected: list[float]) -> None:
    rates = Rates()
    data = TinySequence(epochs_per_task=2, batch_size=12)  # two batches an epoch, four a task
    arguments = {"optimizer": lambda p: SGD(p, lr=1e-3), "lr_scheduler": lambda o: StepLR(o, 1, 0.5)}
    fit(lambda: build(ER, lr_scheduler_interval=interval, **arguments), data, callbacks=[rates])
    assert rates.seen == [round(1e-3 * rate, 6) for rate in expected] * 3


def test_an_overridden_schedule_does_not_restart(fit: Fit) -> None:
    class Decaying(ER):
        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = SGD(self.parameters(), lr=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.5), "frequency": 2}}

    rates = Rates()
    fit(lambda: build(Decaying), TinySequence(epochs_per_task=2, batch_size=24), callbacks=[rates])
    assert rates.seen == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]  # a batch an epoch, two epochs a task


@pytest.mark.parametrize("batches", [3, 7])
def test_adam_and_cosine_resume_exactly(fit: Fit, tmp_path: Path, batches: int) -> None:
    def scheduled() -> ReplayMethod:
        cosine = {"lr_scheduler": lambda o: CosineAnnealingLR(o, 6), "lr_scheduler_interval": "step"}
        return build(ER, optimizer=lambda p: AdamW(p, lr=0.01), gradient_clip_val=0.5, **cosine)

    whole = fit(scheduled, sequence())
    stopped = fit(scheduled, sequence(), max_steps=batches)
    stopped.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    torch.manual_seed(1)
    resumed = scheduled()
    quiet_trainer().fit(resumed, sequence(), ckpt_path=tmp_path / "stopped.ckpt", weights_only=True)
    assert_equal(outcome(resumed), outcome(whole))


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_gradients_are_clipped_as_by_hand(fit: Fit, algorithm: str) -> None:
    class ByHand(ER):
        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            clip = torch.nn.utils.clip_grad_norm_ if algorithm == "norm" else torch.nn.utils.clip_grad_value_
            clip(self.parameters(), 0.05)

    clipped = fit(lambda: build(ER, gradient_clip_val=0.05, gradient_clip_algorithm=algorithm), sequence())
    by_hand, plain = (fit(lambda kind=kind: build(kind), sequence()) for kind in (ByHand, ER))
    assert torch.allclose(clipped.head.weight, by_hand.head.weight, atol=1e-7)
    assert not torch.allclose(clipped.head.weight, plain.head.weight, atol=1e-3)


def test_milestones_beside_an_own_schedule_are_refused(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="lr_milestones must be left out with optimizer, lr_scheduler"):
        fit(lambda: build(ER, lr_milestones=[1], lr_scheduler=lambda o: StepLR(o, 1)), sequence())


def test_a_schedule_beside_an_override_is_refused_unless_the_override_takes_it(fit: Fit) -> None:
    class Own(ER):
        def configure_optimizers(self) -> Any:
            return SGD(self.parameters(), 0.1)

    class Wrapped(ER):
        def configure_optimizers(self) -> Any:
            return super().configure_optimizers()

    schedule = {"lr_scheduler": lambda optimizer: StepLR(optimizer, 1)}
    with pytest.raises(
        ConfigurationError, match="lr_scheduler must be left out where configure_optimizers returns its"
    ):
        fit(lambda: build(Own, **schedule), sequence())
    fit(lambda: build(Wrapped, **schedule), sequence())


def test_arguments_given_at_a_resume_override_the_checkpoints_with_a_note(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = fit(lambda: build(ER), sequence(), max_steps=3)
    stopped.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    for lr, said in ((stopped.lr, False), (0.001, True)):
        resumed = build(ER, lr=lr)
        quiet_trainer().fit(resumed, sequence(), ckpt_path=tmp_path / "stopped.ckpt", weights_only=True)
        line = f"note: resuming with other arguments than the checkpoint's: lr=0.001 (was {stopped.lr})\n"
        assert (line in capsys.readouterr().err) is said
        assert resumed.trainer.optimizers[0].param_groups[0]["lr"] == lr
