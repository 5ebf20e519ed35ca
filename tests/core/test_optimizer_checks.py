"""Optimizers, schedulers and clipping that would train nothing, or stop in the middle, are refused at the start."""

from functools import partial
from typing import Any

import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    CyclicLR,
    ExponentialLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from ddn_lightning import ER, MIR, BiasAdaptor, ConfigurationError, DataDistillNet, Joint, Mnemonics, ReplayMethod


class Split(ER):
    """Gives backbone and head an optimizer each."""

    def configure_optimizers(self) -> Any:
        return [SGD(self.backbone.parameters(), 0.03), SGD(self.head.parameters(), 0.03)]


class Three(ER):
    """Gives backbone, head and distiller an optimizer each."""

    def configure_optimizers(self) -> Any:
        assert self.distiller is not None
        return [*(SGD(m.parameters(), 0.03) for m in (self.backbone, self.head)), self.distiller.configure_optimizer()]


class Plateau(ER):
    """Lowers the learning rate when the loss stays."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), 0.03)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "frequency": 1}}


def of_another(optimizer: Any) -> LRScheduler:
    return StepLR(SGD([nn.Parameter(torch.zeros(1))], 0.1), 1)


def foreign(parameters: Any) -> SGD:
    return SGD([nn.Parameter(torch.zeros(1))], 0.1)


NEVER = partial(StepLR, step_size=0)
REFUSED: dict[str, tuple[type[ER], Any, dict[str, Any], str]] = {
    "two optimizers": (Split, None, {}, "must return one optimizer, .* only the distiller's.* got SGD, SGD"),
    "three optimizers": (Three, DataDistillNet, {}, "must return one optimizer, .*got SGD, SGD, Adam"),
    "two and a distiller": (Split, DataDistillNet, {}, "must return one optimizer, .*got SGD, SGD"),
    "foreign": (ER, None, {"optimizer": foreign}, "1 of 1 parameters of the optimizer are not the method's"),
    "no optimizer": (ER, None, {"optimizer": lambda p: None}, "optimizer must create an optimizer, got NoneType"),
    "a list": (ER, None, {"optimizer": lambda p: [SGD(p, 0.1)]}, "optimizer must create an optimizer, got list"),
    "no head": (
        ER,
        BiasAdaptor,
        {"optimizer": lambda p: SGD(list(p)[:-2], 0.1)},
        "needs an optimizer that moves the head",
    ),
    "bad value": (ER, None, {"optimizer": partial(SGD, lr=-1.0)}, "optimizer cannot be created: Invalid learning rate"),
    "bad name": (ER, None, {"optimizer": partial(SGD, rate=1)}, "optimizer cannot be created: .*'rate'"),
    "bad cycle": (ER, None, {"lr_scheduler": partial(CyclicLR, base_lr=1)}, "lr_scheduler cannot be created: .*max_lr"),
    "no period": (ER, None, {"lr_scheduler": NEVER, "lr_scheduler_interval": "step"}, "StepLR cannot step further"),
    "plateau": (ER, None, {"lr_scheduler": ReduceLROnPlateau}, "must not be ReduceLROnPlateau: .*CosineAnnealingLR"),
    "own plateau": (Plateau, None, {}, "lr_scheduler must not be ReduceLROnPlateau"),
    "no scheduler": (ER, None, {"lr_scheduler": lambda o: None}, "must create a scheduler of .*got NoneType"),
    "a dict": (ER, None, {"lr_scheduler": lambda o: {"scheduler": StepLR(o, 1)}}, "must create a scheduler .*got dict"),
    "of another": (ER, None, {"lr_scheduler": of_another}, "must create a scheduler of the optimizer that it is given"),
}


@pytest.mark.filterwarnings("ignore:The lr scheduler dict contains the key")
@pytest.mark.parametrize(("kind", "distiller", "given", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_train_is_refused_before_training(
    fit: Fit, kind: type[ER], distiller: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: build(kind, distiller, **given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gradient_clip_algorithm": "foo"}, "gradient_clip_algorithm must be one of norm, value, got 'foo'"),
        ({"lr_scheduler_interval": "batch"}, "lr_scheduler_interval must be one of epoch, step, got 'batch'"),
        ({"gradient_clip_val": True}, "gradient_clip_val must be a number, positive, got True"),
        ({"gradient_clip_val": "0.5"}, "gradient_clip_val must be a number, positive, got '0.5'"),
        ({"optimizer": "AdamW"}, r"optimizer must be a function of the parameters, such as AdamW .*got 'AdamW'"),
        ({"lr_scheduler": "StepLR"}, r"lr_scheduler must be a function of the optimizer, such as .*got 'StepLR'"),
    ],
)
def test_wrong_choices_are_refused_by_the_constructor(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(ER, **given)


def test_parameters_left_out_are_noted(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    fit(lambda: build(ER, optimizer=lambda p: SGD(list(p)[-2:], 0.1)), max_steps=1)
    said = "note: the optimizer leaves out 8 trainable parameters, which stay as they are: backbone.layers.0.weight, "
    assert said in capsys.readouterr().err
    fit(lambda: build(ER, DataDistillNet), max_steps=1)
    assert "leaves out" not in capsys.readouterr().err


VIRTUAL_STEPS: dict[str, tuple[type[ReplayMethod], Any]] = {
    "exact": (ER, lambda: DataDistillNet(lookahead="exact")),
    "delayed": (ER, lambda: DataDistillNet(lookahead="delayed")),
    "MIR": (MIR, None),
    "Mnemonics": (Mnemonics, None),
}


@pytest.mark.parametrize(("kind", "distiller"), VIRTUAL_STEPS.values(), ids=VIRTUAL_STEPS.keys())
def test_a_virtual_step_leaves_out_what_the_optimizer_does(fit: Fit, kind: type[ReplayMethod], distiller: Any) -> None:
    def trained(is_frozen: bool) -> ReplayMethod:
        def make() -> ReplayMethod:
            method = build(kind, distiller, backbone=small_net(), optimizer=lambda p: SGD(list(p)[-2:], 0.3))
            method.backbone.requires_grad_(not is_frozen)
            return method

        return fit(make)

    found, expected = (trained(is_frozen).state_dict() for is_frozen in (False, True))
    for name in [name for name, value in expected.items() if isinstance(value, torch.Tensor)]:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, equal_nan=True)


def test_arguments_of_sgd_beside_another_optimizer_are_noted(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    fit(lambda: build(ER, optimizer=partial(AdamW, lr=0.001), lr=5.0, momentum=0.9), max_steps=1)
    assert "options of the default SGD do not apply to it: lr=5.0, momentum=0.9\n" in capsys.readouterr().err
    fit(lambda: build(ER, optimizer=partial(AdamW, lr=0.001), lr=0.03), max_steps=1)
    assert "do not apply" not in capsys.readouterr().err


def one_cycle(total_steps: int) -> dict[str, Any]:
    schedule = partial(OneCycleLR, max_lr=0.1, total_steps=total_steps, cycle_momentum=False)
    return {"lr_scheduler": schedule, "lr_scheduler_interval": "step"}


@pytest.mark.parametrize(
    ("kind", "per_class", "trainer", "needed"),
    [
        (ER, (12,) * 6, {}, 4),  # two batches of an epoch, two epochs
        (ER, (12, 12, 24, 24, 12, 12), {}, 8),
        (ER, (12,) * 6, {"limit_train_batches": 1}, 2),
        (ER, (12,) * 6, {"limit_train_batches": 0.5}, 2),
        (Joint, (12, 12, 24, 24, 12, 12), {}, 6),  # equal parts of all data
    ],
)
def test_a_cycle_shorter_than_a_task_is_refused(
    fit: Fit, kind: type[ReplayMethod], per_class: tuple[int, ...], trainer: dict[str, Any], needed: int
) -> None:
    def data() -> TinySequence:
        return TinySequence(epochs_per_task=2, batch_size=12, per_class=per_class)

    message = f"total_steps of OneCycleLR must be at least {needed}, the steps of the longest task, got {needed - 1}"
    with pytest.raises(ConfigurationError, match=message):
        fit(lambda: build(kind, **one_cycle(needed - 1)), data(), **trainer)
    assert fit(lambda: build(kind, **one_cycle(needed)), data(), **trainer).tasks_finished == 3


def test_a_cycle_that_ends_unforeseen_is_said_in_one_line(fit: Fit) -> None:
    def hidden(optimizer: Any) -> SequentialLR:
        parts = [OneCycleLR(optimizer, 0.1, total_steps=2, cycle_momentum=False), ExponentialLR(optimizer, 0.9)]
        return SequentialLR(optimizer, parts, [9])

    with pytest.raises(ConfigurationError, match="^SequentialLR cannot step further in task 1: Tried to step 3 times"):
        fit(lambda: build(ER, lr_scheduler=hidden, lr_scheduler_interval="step"), TinySequence(batch_size=6))


@pytest.mark.parametrize(
    ("optimizer", "schedule", "option"),
    [
        (partial(AdamW, lr=0.01), partial(OneCycleLR, max_lr=0.1, total_steps=10), "betas"),
        (
            partial(SGD, lr=0.01, momentum=0.9),
            partial(CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3),
            "momentum",
        ),
    ],
)
def test_momentum_restarts_with_the_schedule_at_each_task(fit: Fit, optimizer: Any, schedule: Any, option: str) -> None:
    class Seen(ER):
        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            seen.append(optimizer.param_groups[0][option])

    seen: list[Any] = []
    given = {"optimizer": optimizer, "lr_scheduler": schedule, "lr_scheduler_interval": "step"}
    fit(lambda: build(Seen, **given), TinySequence(epochs_per_task=2, batch_size=12))
    assert len(set(seen[:4])) > 1
    assert seen[:4] == seen[4:8] == seen[8:]
