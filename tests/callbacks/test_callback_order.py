"""The order in which callbacks are given does not change a run."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from every_method import build
from lightning.pytorch import Callback
from tiny import small_net

from ddn_lightning import (
    ER,
    DataDistillNet,
    DistillNetSnapshot,
    Forgetting,
    LoggedCurves,
    Observations,
    RandomState,
    ReplayMethod,
    ReservoirSampling,
)

CALLBACKS: list[type[Callback]] = [
    Observations,  # first, as on the command line
    ReservoirSampling,
    Forgetting,
    RandomState,
    LoggedCurves,
    DistillNetSnapshot,
]
ORDERS = [CALLBACKS, CALLBACKS[::-1], CALLBACKS[3:] + CALLBACKS[:3], CALLBACKS[1::2] + CALLBACKS[::2]]


def test_the_orders_contain_each_pair_of_callbacks_both_ways() -> None:
    pairs = {(first, second) for order in ORDERS for i, first in enumerate(order) for second in order[i + 1 :]}
    assert len(pairs) == len(CALLBACKS) * (len(CALLBACKS) - 1)


def test_any_order_of_callbacks_gives_the_same_run(fit: Callable[..., ReplayMethod]) -> None:
    outcomes = [outcome(fit, order) for order in ORDERS]
    for first, second in pairwise(outcomes):
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert torch.equal(value, second[name]), name


def outcome(fit: Callable[..., ReplayMethod], order: list[type[Callback]]) -> dict[str, torch.Tensor]:
    callbacks = [callback() for callback in order]
    method = fit(lambda: build(ER, DataDistillNet), callbacks=callbacks)
    taken = [type(c) for c in method.trainer.callbacks if type(c) in CALLBACKS]  # type: ignore[attr-defined]  # Lightning does not declare it
    assert taken == sorted(order, key=lambda kind: kind is not ReservoirSampling)  # the memory always comes first
    (observed,) = [callback.observed for callback in callbacks if isinstance(callback, Observations)]
    assert observed is not None
    held = method.memory[torch.arange(len(method.memory))]
    found = {"images": held.images, "labels": held.labels} | observed.tensors()
    found |= {name: value for name, value in method.state_dict().items() if torch.is_tensor(value)}
    return {name: value.nan_to_num(-1.0) if value.is_floating_point() else value for name, value in found.items()}


@pytest.mark.parametrize("order", [[Observations, DistillNetSnapshot], [DistillNetSnapshot, Observations]])
def test_the_observed_labels_are_those_that_the_task_was_trained_with(
    fit: Callable[..., ReplayMethod], order: list[type[Callback]]
) -> None:
    """With the G_old of the task before, though a new one is taken at the same moment."""
    snapshots: list[int] = []

    class Watch(DataDistillNet):
        def soft_labels(self, samples: Any, probabilities: Any) -> Any:
            if not self.training:
                snapshots.append(self.snapshots)
            return super().soft_labels(samples, probabilities)

    fit(lambda: build(ER, Watch, small_net()), callbacks=[callback() for callback in order])
    assert snapshots == [0, 1, 2]
