"""A checkpoint with weights that are not finite, or a part of another shape, is refused in one line that names it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_tree import changed
from every_method import SaveAlways, build
from tiny import TinySequence

from ddn_lightning import ER, DERPlusPlus, Observations, ReplayMethod
from ddn_lightning.errors import ConfigurationError

Make = Callable[[], ReplayMethod]


def sequence() -> TinySequence:
    return TinySequence(per_class=(6,) * 6, batch_size=4)


def saved_in_the_last_task(fit: Callable[..., ReplayMethod], make: Make, folder: Path) -> dict[str, Any]:
    """The checkpoint before the last step, when everything there is has something in it."""
    fit(make, sequence(), enable_checkpointing=True, callbacks=[SaveAlways(folder), Observations()])
    steps = sorted(folder.glob("step*.ckpt"), key=lambda path: int(path.stem.removeprefix("step")))
    checkpoint: dict[str, Any] = torch.load(steps[-2], weights_only=True)
    return checkpoint


WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (
        ("state_dict", "head.weight"),
        torch.full((6, 8), torch.nan),
        "head.weight must be finite everywhere, but 48 of 48",
    ),
    (("state_dict", "head.bias"), torch.zeros(5), "head.bias must be of shape (6,), got float32 of shape (5,)"),
    (("ddn_lightning", "parts", "memory", "contents", "images"), torch.zeros(10, 1, 9, 9).byte(), "(10, 1, 8, 8), got"),
    (("optimizer_states", 0, "state", 3, "momentum_buffer"), torch.zeros(2), "momentum_buffer must be floating point"),
    (("optimizer_states",), [{}, {}], "optimizer_states must be a list of 1"),
]


def test_a_part_of_another_type_or_shape_or_with_nan_is_refused(
    fit: Callable[..., ReplayMethod], tmp_path: Path
) -> None:
    def make() -> ReplayMethod:
        return build(ER, momentum=0.9)

    checkpoint = saved_in_the_last_task(fit, make, tmp_path)
    for path, value, expected in WRONG:
        torch.save(changed(checkpoint, path, value), tmp_path / "wrong.ckpt")
        with pytest.raises(ConfigurationError, match=re.escape(expected)):
            fit(make, sequence(), ckpt_path=tmp_path / "wrong.ckpt", callbacks=[Observations()])


@pytest.mark.parametrize(("first", "then"), [("32-true", "bf16-mixed"), ("bf16-mixed", "32-true")])
def test_derpp_resumes_in_another_precision(
    fit: Callable[..., ReplayMethod], first: str, then: str, tmp_path: Path
) -> None:
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    fit(lambda: build(DERPlusPlus), sequence(), precision=first, **saving)
    resumed = fit(lambda: build(DERPlusPlus), sequence(), precision=then, ckpt_path=tmp_path / "step3.ckpt")
    assert resumed.tasks_finished == 3
    assert resumed.memory.state_dict()["contents"]["logits"].dtype == torch.float32  # the wider of both
