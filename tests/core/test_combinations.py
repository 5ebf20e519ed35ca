"""Methods, memories, plug-ins, tricks and streams in random combinations: stopped and resumed, and on two ranks."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import DISTILLERS, METHODS, ControlledER, build
from test_resume import assert_equal, outcome
from tiny import BatchNormNet, DropoutNet, Fit, TinySequence, small_net
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR

from ddn_lightning import (
    Blurry,
    ClassBalancedReservoir,
    ConfigurationError,
    DataDistillNet,
    FewShot,
    Forgetting,
    GaussianDrift,
    GradientSelection,
    LabelNoise,
    LongTail,
    LossAwareReservoir,
    LowRankMemory,
    RandAugment,
    ReplayMethod,
    RingBuffer,
)

LOW_RANK = partial(LowRankMemory, matching_width=8)
PARTS: dict[str, list[Callable[[], Any]]] = {  # made anew for each run
    "memory": [ClassBalancedReservoir, GradientSelection, LossAwareReservoir, LOW_RANK, RingBuffer],
    "rand_augment": [RandAugment],
}
TRICKS: dict[str, list[Any]] = {
    "replay_steps": [2, 3],
    "old_memory_weight": [0.5],
    "running_statistics": ["memory"],
    "momentum": [0.9],
    "weight_decay": [0.001],
    "gradient_clip_val": [0.5],
    "mask_unseen": [True],
    "optimizer": [partial(SGD, lr=0.05, momentum=0.9), partial(AdamW, lr=0.001)],
    "lr_scheduler": [partial(StepLR, step_size=1, gamma=0.5)],
    "lr_scheduler_interval": ["epoch", "step"],
}
LOOK_AHEADS = [partial(DataDistillNet, lookahead=mode) for mode in ("exact", "delayed")]
STREAMS = [Blurry, GaussianDrift, LongTail, LabelNoise, partial(FewShot, shots=6)]
MOST_ATTEMPTS = 50
Run = Callable[..., ReplayMethod]


def combined(fit: Fit, chance: random.Random, nets: list[Any], precisions: list[str]) -> tuple[Run, str]:
    """How to train a random combination, and what it is."""
    method, net, precision = chance.choice(METHODS), chance.choice(nets), chance.choice(precisions)
    distiller = chance.choice([*LOOK_AHEADS, *DISTILLERS]) if chance.random() < 0.5 else None
    tricks = {name: chance.choice(values) for name, values in TRICKS.items() if chance.random() < 0.2}
    parts = {name: chance.choice(makers) for name, makers in PARTS.items() if chance.random() < 0.3}
    stream = chance.choice(STREAMS) if chance.random() < 0.4 else None
    statistics = chance.choice(["running", "memory", "both"])
    epochs, size = chance.choice([1, 2]), chance.choice([6, 10])
    if method is ControlledER:
        tricks.pop("old_memory_weight", None)  # it has its own

    def run(**arguments: Any) -> ReplayMethod:
        def make() -> ReplayMethod:
            return build(method, distiller, net(), **tricks, **{name: part() for name, part in parts.items()})

        data = TinySequence(
            stream=None if stream is None else stream(),
            epochs_per_task=epochs,
            batch_size=size,
            per_class=(10, 10, 15, 15, 22, 23),
        )
        callbacks = [Forgetting(statistics=statistics)]
        return fit(make, data, callbacks=callbacks, precision=precision, **arguments)

    chosen = method, distiller, net, tricks, parts, stream, statistics, precision, f"{epochs} epochs of {size}"
    return run, " ".join(map(str, chosen))


def trained(fit: Fit, number: int, nets: list[Any], precisions: list[str]) -> tuple[Run, ReplayMethod, random.Random]:
    """A combination that is not refused, and trained; what is refused is drawn again."""
    for attempt in range(MOST_ATTEMPTS):
        chance = random.Random(f"{number}, attempt {attempt}")
        run, chosen = combined(fit, chance, nets, precisions)
        try:
            method = run()
        except ConfigurationError:
            continue
        print(chosen)  # shown if the test fails
        return run, method, chance
    raise AssertionError(f"{MOST_ATTEMPTS} combinations were refused")


@pytest.mark.parametrize("number", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 150))])
def test_a_combination_that_is_stopped_and_resumed_ends_the_same(fit: Fit, number: int, tmp_path: Path) -> None:
    nets, precisions = [small_net, BatchNormNet, DropoutNet], ["32-true", "32-true", "bf16-mixed", "64-true"]
    run, whole, chance = trained(fit, number, nets, precisions)
    expected, steps = outcome(whole), whole.trainer.global_step
    path: Path | None = None
    for stop in sorted(chance.sample(range(1, steps), 2)):
        stopped = run(max_steps=stop, ckpt_path=path, seed=0 if path is None else 5)
        path = tmp_path / f"{stop}.ckpt"
        stopped.trainer.save_checkpoint(path)
    assert_equal(outcome(run(ckpt_path=path, seed=99)), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("number", range(60))
def test_a_combination_on_two_ranks_equals_one(fit: Fit, number: int) -> None:
    run, one, _ = trained(fit, number, [small_net], ["64-true"])
    two = run(devices=2, strategy="ddp_fork")
    for (name, expected), found in zip(one.named_parameters(), two.parameters(), strict=True):
        # Lightning returns weights from other processes in single precision
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7, msg=name)
    assert torch.equal(one.accuracy_matrix.nan_to_num(), two.accuracy_matrix.double().nan_to_num())
