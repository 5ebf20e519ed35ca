"""A memory whose size is given in bytes: counted by hand, and full at the end of a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import METHODS, build
from tiny import Fit, MakeTrainer, TinyPart, TinySequence, small_net

from ddn_lightning import (
    CLSER,
    ER,
    XDER,
    ClassBalancedReservoir,
    ConfigurationError,
    DERPlusPlus,
    Finetune,
    ICaRL,
    LearnedLabels,
    ReplayMethod,
    load,
)
from ddn_lightning.callbacks.stored_bytes import stored_bytes

NETWORK = 4 * (40 + 296 + (8 * 128 + 8) + (6 * 8 + 6))  # two convolutions, a layer and the head, in float32
ITEM = 64 + 8 + 8  # an 8x8 image, its label and task
CASES: list[tuple[type[ReplayMethod], int, int]] = [
    (ER, 0, ITEM + 8),  # and its slot
    (DERPlusPlus, 0, ITEM + 8 + 6 * 4),  # and 6 logits
    (CLSER, 2 * NETWORK, ITEM + 8),
    (ICaRL, NETWORK + 6 * 8 * 4 + 6, ITEM),  # the last network, class means, and which classes are old
]


def fitted(fit: Fit, method: type[ReplayMethod], budget: int, **options: Any) -> ReplayMethod:
    options = {"backbone": small_net(), **options}
    return fit(lambda: build(method, buffer_size=None, buffer_bytes=budget, **options))


@pytest.mark.parametrize(("method", "fixed", "each"), CASES, ids=[case[0].__name__ for case in CASES])
def test_buffer_size_is_the_largest_within_the_bytes(
    fit: Fit, method: type[ReplayMethod], fixed: int, each: int
) -> None:
    assert fitted(fit, method, fixed + 12 * each).buffer_size == 12
    assert fitted(fit, method, fixed + 12 * each - 1).buffer_size == 11
    full = fitted(fit, method, fixed + 12 * each)
    assert stored_bytes(full) == {"samples": 12 * each, "others": fixed}


@pytest.mark.parametrize("method", [m for m in METHODS if m(small_net(), 6).stored_samples is not None])
def test_no_method_stores_more_than_its_bytes(fit: Fit, method: type[ReplayMethod]) -> None:
    others = sum(stored_bytes(fit(lambda: build(method))).values())
    trained = fitted(fit, method, budget := others + 2000, backbone=None)
    assert trained.buffer_size > 10
    assert budget - 600 < sum(stored_bytes(trained).values()) <= budget


@pytest.mark.parametrize("options", [{}, {"distiller_class": LearnedLabels}, {"memory": ClassBalancedReservoir}])
def test_the_run_is_that_of_its_buffer_size(fit: Fit, options: dict[str, Any]) -> None:
    def run(**size: Any) -> ReplayMethod:
        made = {name: one if name == "distiller_class" else one() for name, one in options.items()}
        return fit(lambda: build(ER, **made, **size))

    by_bytes = run(buffer_size=None, buffer_bytes=5000)
    by_size = run(buffer_size=by_bytes.buffer_size)
    assert difference(dict(by_bytes.named_parameters()), dict(by_size.named_parameters())) is None
    assert difference(by_bytes.memory.state_dict(), by_size.memory.state_dict()) is None
    assert by_bytes.hparams["buffer_size"] == by_bytes.buffer_size != 200


def test_features_and_half_precision_take_their_own_size(fit: Fit, make_trainer: MakeTrainer) -> None:
    from test_feature_cache import PlainSequence

    from ddn_lightning import FrozenFeatures

    frozen = FrozenFeatures(small_net())
    cached = fit(
        lambda: build(ER, backbone=frozen, buffer_size=None, buffer_bytes=10 * (8 * 4 + 24)),
        PlainSequence(batch_size=6),
    )
    assert cached.buffer_size == 10
    for precision, logit in (("bf16-true", 2), ("64-true", 8), ("bf16-mixed", 4)):
        method = build(DERPlusPlus, backbone=small_net(), buffer_size=None, buffer_bytes=12 * (ITEM + 8 + 6 * logit))
        make_trainer(precision=precision).fit(method, TinySequence(batch_size=6))
        assert method.buffer_size == 12
        assert stored_bytes(method)["samples"] == 12 * (ITEM + 8 + 6 * logit)


def test_a_checkpoint_has_the_size_and_resumes(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    def new() -> ReplayMethod:
        torch.manual_seed(0)
        return build(ICaRL, backbone=small_net(), buffer_size=None, buffer_bytes=10_000)

    whole, stopped, resumed = new(), new(), new()
    make_trainer().fit(whole, TinySequence(batch_size=6))
    trainer = make_trainer(max_steps=9)
    trainer.fit(stopped, TinySequence(batch_size=6))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    make_trainer().fit(resumed, TinySequence(batch_size=6), ckpt_path=tmp_path / "a.ckpt")
    assert difference(whole.state_dict(), resumed.state_dict()) is None
    assert load(tmp_path / "a.ckpt").buffer_size == whole.buffer_size


def test_new_classes_leave_the_number_of_samples_as_it_is(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    def new(num_classes: int) -> ReplayMethod:
        options: dict[str, Any] = {"backbone": small_net(), "buffer_size": None, "num_classes": num_classes}
        return build(DERPlusPlus, buffer_bytes=12 * (ITEM + 8 + 6 * 4), **options)

    trainer = make_trainer()
    trainer.fit(new(6), TinyPart((0, 6)))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    grown = new(10)
    make_trainer().fit(grown, TinyPart((0, 6)).followed_by(TinyPart((6, 10))), ckpt_path=tmp_path / "a.ckpt")
    assert grown.buffer_size == grown.memory.buffer_size == len(grown.memory) == 12


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", [ER, ICaRL, XDER])
def test_two_ranks_have_the_same_size(fit: Fit, method: type[ReplayMethod]) -> None:
    def trained(**options: Any) -> ReplayMethod:
        budget = stored_bytes(one)["others"] + 1300
        return fit(lambda: build(method, backbone=small_net(), buffer_size=None, buffer_bytes=budget), **options)

    one = build(method, backbone=small_net())
    single, two = trained(), trained(devices=2, strategy="ddp_fork")
    assert single.buffer_size == two.buffer_size > 10
    assert torch.allclose(single.head.weight, two.head.weight, atol=1e-5)


REFUSED = [
    (ER, {"buffer_bytes": ITEM + 7}, "room for one sample of 88 bytes in addition to the 0 that ER keeps, got 87"),
    (ER, {"buffer_bytes": 0}, "buffer_bytes must be positive, got 0"),
    (ER, {"buffer_bytes": 900, "buffer_size": 10}, "got 900 bytes and 10 samples: leave out one of them"),
    (ER, {"buffer_bytes": 900, "memory": ClassBalancedReservoir(buffer_size=10)}, "got 900 bytes and 10 samples"),
    (Finetune, {"buffer_bytes": 900}, "buffer_bytes has no effect: Finetune keeps no samples"),
    (ICaRL, {"buffer_bytes": CASES[3][1] + 5 * ITEM}, "buffer_size must be at least num_classes = 6"),
]


@pytest.mark.parametrize(("method", "options", "message"), REFUSED)
def test_bytes_without_room_or_with_a_size_are_refused(
    method: type[ReplayMethod], options: dict[str, Any], message: str, make_trainer: MakeTrainer
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_trainer().fit(
            build(method, backbone=small_net(), **{"buffer_size": None, **options}), TinySequence(batch_size=6)
        )
