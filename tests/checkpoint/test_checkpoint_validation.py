"""A tampered checkpoint is refused in one line, or the run ends as with the original."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import COMBINATIONS, SaveAlways, build
from tampering import DELETED, Tampering, tamperings
from test_resume import assert_equal, outcome
from tiny import TinySequence

from ddn_lightning import (
    ER,
    DataDistillNet,
    DERPlusPlus,
    ICaRL,
    LabelDistiller,
    LearnedLabels,
    LoDM,
    Observations,
    ReplayMethod,
)
from ddn_lightning.cli.resume import checkpoint_of
from ddn_lightning.errors import ConfigurationError

# values that no other part of a checkpoint depends on: only a digest could detect a change
FREE = ("ddn_lightning/streams/seed", "ddn_lightning/sequence/shuffle_seed", "num_batches_tracked", "endings")

Make = Callable[[], ReplayMethod]


def sequence() -> TinySequence:
    return TinySequence(per_class=(6,) * 6, batch_size=4)


def is_free(tampering: Tampering) -> bool:
    return tampering.name in ("out of range", "negative") and str(tampering).partition(": ")[0].endswith(FREE)


def saved_in_the_last_task(fit: Callable[..., ReplayMethod], make: Make, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint before the last step, when everything there is has something in it, and how the run ended."""
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(folder), Observations()]}
    ended = outcome(fit(make, sequence(), **saving))
    steps = sorted(folder.glob("step*.ckpt"), key=lambda path: int(path.stem.removeprefix("step")))
    return steps[-2], ended


def what_happens(fit: Callable[..., ReplayMethod], make: Make, path: Path, expected: dict[str, Any]) -> str:
    """How a resume ends: refused, the same, silently otherwise, or in an exception that is not meant for users."""
    try:
        checkpoint_of(path, type(make()).__name__)
        resumed = outcome(fit(make, sequence(), ckpt_path=path, callbacks=[Observations()]))
    except ConfigurationError as error:
        return "refused" if "\n" not in str(error) else f"refused in several lines: {error}"
    except Exception as error:  # the caller checks its type
        return f"{type(error).__name__}: {error}"
    try:
        assert_equal(resumed, expected)
    except AssertionError:
        return "silently otherwise"
    return "the same"


def bad_endings(fit: Callable[..., ReplayMethod], make: Make, folder: Path, how_many: int | None = None) -> list[str]:
    """Which changes of a method's checkpoint are neither refused nor harmless; of a sample of them, or of all."""
    path, expected = saved_in_the_last_task(fit, make, folder)
    checkpoint = torch.load(path, weights_only=True)
    every = [tampering for tampering in tamperings(checkpoint) if not is_free(tampering)]
    bad = []
    for tampering in every if how_many is None else random.Random(0).sample(every, how_many):
        torch.save(tampering.applied_to(checkpoint), folder / "tampered.ckpt")
        happened = what_happens(fit, make, folder / "tampered.ckpt", expected)
        bad += [] if happened in ("refused", "the same") else [f"{tampering}: {happened}"]
    return bad


@pytest.mark.parametrize(
    ("method_class", "distiller_class"),
    [(ER, DataDistillNet), (ER, LearnedLabels), (DERPlusPlus, None), (ICaRL, None), (LoDM, None)],
)
def test_a_tampered_checkpoint_is_refused_or_harmless(
    fit: Callable[..., ReplayMethod],
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    tmp_path: Path,
) -> None:
    assert not bad_endings(fit, lambda: build(method_class, distiller_class, momentum=0.9), tmp_path, how_many=15)


@pytest.mark.slow
@pytest.mark.parametrize(("method_class", "distiller_class"), COMBINATIONS)
def test_a_tampered_checkpoint_of_any_method_is_refused_or_harmless(
    fit: Callable[..., ReplayMethod],
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    tmp_path: Path,
) -> None:
    assert not bad_endings(fit, lambda: build(method_class, distiller_class, momentum=0.9), tmp_path)


WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (
        ("state_dict", "head.weight"),
        torch.full((6, 8), torch.nan),
        "head.weight must be finite everywhere, but 48 of 48",
    ),
    (("state_dict", "accuracy_matrix"), torch.zeros(4, 4), "must be of shape (3, 3), got float32 of shape (4, 4)"),
    (
        ("state_dict", "accuracy_matrix"),
        torch.full((3, 3), 50.0),
        "must have rows only of the tasks evaluated in 2 epochs",
    ),
    (("state_dict", "_extra_state", "task"), 99, "task must be an integer from 1 to 2, got 99"),
    (("callbacks", "ReservoirSampling", "seen"), 10**30, "memory/seen must be an integer from 0 to 32, got 10000"),
    (("callbacks", "ReservoirSampling", "contents", "labels"), torch.full((10,), 6), "memory/labels must be 0 to 5"),
    (("callbacks", "ReservoirSampling", "contents", "tasks"), torch.zeros(10).long(), "memory/tasks must be "),
    (("callbacks", "ReservoirSampling", "contents", "images"), torch.zeros(10, 1, 9, 9).byte(), "(10, 1, 8, 8), got"),
    (("state_dict", "_extra_state", "epochs_evaluated"), 4, "epochs_evaluated must be an integer from 0 to 3, got 4"),
    (("callbacks", "RandomState", "ranks"), [{}], "RandomState/ranks/0 must have an entry 'python'"),
    (
        ("callbacks", "Observations", "confusion"),
        torch.zeros(6, 6),
        "confusion must be int64 of shape (6, 6), got float32",
    ),
    (("callbacks",), "text", "callbacks must be a dictionary, got 'text'"),
    (("loops", "fit_loop"), {}, "loops/fit_loop must have an entry 'epoch_progress'"),
    (
        ("loops", "fit_loop", "epoch_progress", "current", "processed"),
        10**6,
        "must be 2, as other counts say, got 10000",
    ),
    (("global_step",), 5, "its global_step, 5, got 8"),
    (("optimizer_states",), [{}, {}], "optimizer_states must be a list of 1"),
    (("ddn_lightning", "streams", "states"), {"augment": torch.zeros(7).byte()}, "uint8 of shape (5056), got"),
]
GONE = [
    ("ddn_lightning", "streams", "states", "augment"),
    ("optimizer_states", 0, "state", 3, "momentum_buffer"),
    ("callbacks", "Observations", "confusion"),
]


def test_the_error_names_the_damaged_part(fit: Callable[..., ReplayMethod], tmp_path: Path) -> None:
    saved, _ = saved_in_the_last_task(fit, lambda: build(ER), tmp_path)
    checkpoint = torch.load(saved, weights_only=True)
    del checkpoint["ddn_lightning"]["contents"]  # as if it had been written like this
    for path, value, expected in WRONG:
        torch.save(Tampering(path, "wrong", value).applied_to(checkpoint), tmp_path / "tampered.ckpt")
        with pytest.raises(ConfigurationError, match=re.escape(expected)):
            fit(lambda: build(ER), sequence(), ckpt_path=tmp_path / "tampered.ckpt", callbacks=[Observations()])


def test_a_missing_entry_that_would_silently_start_over_is_refused(
    fit: Callable[..., ReplayMethod], tmp_path: Path
) -> None:
    def make() -> ReplayMethod:
        return build(ER, momentum=0.9)

    saved, _ = saved_in_the_last_task(fit, make, tmp_path)
    checkpoint = torch.load(saved, weights_only=True)
    for path in GONE:
        torch.save(Tampering(path, "deleted", DELETED).applied_to(checkpoint), tmp_path / "tampered.ckpt")
        with pytest.raises(ConfigurationError, match=f"has changed since it was written: {'/'.join(map(str, path))} "):
            fit(make, sequence(), ckpt_path=tmp_path / "tampered.ckpt", callbacks=[Observations()])


@pytest.mark.parametrize(("first", "then"), [("32-true", "bf16-mixed"), ("bf16-mixed", "32-true")])
def test_derpp_resumes_in_another_precision(
    fit: Callable[..., ReplayMethod], first: str, then: str, tmp_path: Path
) -> None:
    saving = {"enable_checkpointing": True, "callbacks": [SaveAlways(tmp_path)]}
    fit(lambda: build(DERPlusPlus), sequence(), precision=first, **saving)
    resumed = fit(lambda: build(DERPlusPlus), sequence(), precision=then, ckpt_path=tmp_path / "step3.ckpt")
    assert resumed.tasks_finished == 3
    assert resumed.memory.state_dict()["contents"]["logits"].dtype == torch.float32  # the wider of both
