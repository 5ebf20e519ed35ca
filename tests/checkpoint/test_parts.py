"""The contract of an exact resume, tried on every part of every method."""

import copy
import io
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import METHODS, build
from tiny import Fit, TinySequence

from ddn_lightning import ER, ConfigurationError, DataDistillNet, Learner, ReplayLoss, ReplayMethod, Samples, Term
from ddn_lightning.checkpoint.parts import load_parts, save_parts


class CountedSteps(Term):
    """A user's term with a state: it adds nothing and counts the steps."""

    def __init__(self) -> None:
        self.steps = 0

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        self.steps += 1
        return loss

    def training_state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_training_state(self, state_dict: dict[str, Any], device: torch.device) -> None:
        self.steps = state_dict["steps"]


class Counting(ER):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.terms = (*self.terms, CountedSteps())


def everything(method: ReplayMethod) -> dict[str, Any]:
    return {**save_parts(method.parts), "extra": method.get_extra_state()}


def on_disk(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("method_class", [Counting, *METHODS])
def test_all_parts_return_from_a_file_and_a_deep_copy_shares_none(method_class: type[ReplayMethod], fit: Fit) -> None:
    if method_class not in (Counting, ER) and not method_class.__module__.startswith("ddn_lightning"):
        pytest.skip("the base class is tried")
    trained = fit(lambda: build(method_class), TinySequence(batch_size=12), max_steps=4)
    saved = everything(trained)
    copied = copy.deepcopy(saved)
    other = fit(lambda: build(method_class), TinySequence(batch_size=12), max_steps=1, seed=3)
    early = on_disk(everything(other))
    assert difference(early, saved) is not None
    twin = copy.deepcopy(trained)
    twin.trainer = trained.trainer
    for method, states in ((other, on_disk(saved)), (twin, early)):
        load_parts(method.parts, states)
        method.set_extra_state(states["extra"])
        assert difference(everything(method), states) is None
    assert difference(saved, copied) is None
    assert difference(everything(trained), copied) is None


def test_a_term_of_the_users_own_resumes_with_the_run(fit: Fit) -> None:
    def counted(**arguments: Any) -> int:
        method = fit(lambda: build(Counting, DataDistillNet), TinySequence(batch_size=12), **arguments)
        method.trainer.save_checkpoint("run.ckpt")
        return method.terms[-1].steps

    assert counted(max_steps=4) == 4
    assert counted(ckpt_path="run.ckpt", seed=9) == counted()


def test_a_checkpoint_without_a_part_is_refused(fit: Fit) -> None:
    method = fit(lambda: build(Counting), TinySequence(batch_size=12), max_steps=2)
    states = save_parts(method.parts)
    del states["CountedSteps"]
    with pytest.raises(ConfigurationError, match="parts must have an entry 'CountedSteps', but there is none"):
        load_parts(method.parts, states)
