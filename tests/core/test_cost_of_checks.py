"""The bookkeeping of a step takes few function calls."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch

from benchmarks.common import PreparedMethod, Workload
from ddn_lightning import ER, SmallNet

SMALL = Workload(width=2, batch=4, image_size=8, buffer_size=20)


def calls_of(action: Callable[[], object]) -> int:
    """The number of function calls, which does not depend on the machine."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_current_lr_and_note_loss_take_few_calls() -> None:
    method = PreparedMethod(ER, SMALL).method
    loss = torch.tensor(1.0)
    assert calls_of(lambda: method.current_lr) <= 10
    assert calls_of(lambda: method.note_loss(loss)) <= 25


def own_optimizers(self: ER) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(self.parameters())]


@pytest.mark.parametrize("of", ["class", "object"])
def test_an_overridden_optimizer_is_detected(of: str) -> None:
    method_class = type("OwnER", (ER,), {"configure_optimizers": own_optimizers}) if of == "class" else ER
    method = method_class(SmallNet(), num_classes=10)
    if of == "object":
        method.configure_optimizers = own_optimizers.__get__(method)
    assert method.has_own_optimizer
    assert not ER(SmallNet(), num_classes=10).has_own_optimizer
