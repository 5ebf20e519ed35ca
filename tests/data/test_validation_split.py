"""The validation split: the declared number of images of each class, the same on every rank and after stops."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from test_streams import KINDS, a_plan
from tiny import TinySequence
from torch import Tensor

from ddn_lightning import (
    ClosedTestSetError,
    ConfigurationError,
    RotatedImages,
    Samples,
    SplitDigits,
    Stream,
    TaskSequence,
)
from ddn_lightning.data.plan import PlannedSamples
from ddn_lightning.data.validation_split import ValidationSplit

SIZES = some.lists(some.integers(2, 4), min_size=1, max_size=4)


class Domains(TinySequence):
    """Data with three domains of its own, of different sizes."""

    has_domains = True

    def load_tasks(self, train: bool) -> Tensor:
        return torch.arange(72) % 12 // 2 % 3


def set_up(stage: str = "fit", make: type[TinySequence] = TinySequence, **kwargs: Any) -> TinySequence:
    sequence = make(**kwargs)
    sequence.setup(stage)
    return sequence


def numbers(samples: Samples) -> list[int]:
    """The numbers of the images in the data, by their pixels."""
    pixels = TinySequence().load(train=True)[0].flatten(1)
    return [int((pixels == image).all(dim=1).nonzero()) for image in samples[:].images.flatten(1)]


@settings(max_examples=40, deadline=None)
@given(SIZES, some.integers(2, 30), some.floats(0.01, 0.9), some.integers(0, 99))
def test_training_and_validation_images_are_all_images_once_with_the_declared_share(
    sizes: list[int], per_class: int, share: float, seed: int
) -> None:
    plan, expected = a_plan(sizes, per_class), max(round(per_class * share), 1)
    if expected == per_class:
        return
    is_held_out = ValidationSplit(share=share, seed=seed).is_held_out(plan)
    assert plan.labels[is_held_out].bincount().tolist() == [expected] * sum(sizes)
    assert is_held_out.equal(ValidationSplit(per_class=expected, seed=seed).is_held_out(plan))


@pytest.mark.parametrize("kind", [None, *KINDS], ids=str)
def test_no_stream_trains_on_a_validation_image_or_changes_their_number(kind: Stream | None) -> None:
    sequence = set_up(stream=kind, validation_per_class=3, drop_last=False)
    clean = set_up(validation_per_class=3)
    domains = 3 if kind is not None and kind.is_by_domain else 1
    assert len(sequence.val_set) == domains * 18
    assert sequence.val_set.labels.equal(clean.val_set.labels.repeat(domains))  # no noise
    held_out = set(numbers(clean.val_set))
    assert len(held_out) == 18
    assert held_out | set(numbers(clean.train_set)) == set(range(72))
    assert not held_out & set(numbers(clean.train_set))
    assert isinstance(sequence.train_set, PlannedSamples)
    assert not held_out & set(sequence.train_set._rows.tolist())


def test_validation_images_change_by_domain_as_test_images_do() -> None:
    sequence = set_up(num_tasks=2, stream=RotatedImages(180), validation_per_class=2)
    assert sequence.val_set.tasks is not None
    first, second = (sequence.val_set[sequence.val_set.tasks == task].images for task in (0, 1))
    assert second.equal(first.flip(2, 3))


def test_each_class_of_each_domain_is_held_out() -> None:
    sequence = set_up(make=Domains, validation_per_class=1)
    assert sequence.val_set.tasks is not None
    pairs = list(zip(sequence.val_set.labels.tolist(), sequence.val_set.tasks.tolist(), strict=True))
    assert sorted(pairs) == [(label, domain) for label in range(6) for domain in range(3)]


def test_the_same_images_are_held_out_whatever_the_run_s_seed_and_the_order_of_the_classes() -> None:
    first = set_up(validation_share=0.25).validation_record()
    torch.manual_seed(99)
    assert first == set_up(validation_share=0.25, class_order_seed=5, num_tasks=2).validation_record()
    other = set_up(validation_share=0.25, validation_seed=1).validation_record()
    assert first is not None
    assert other is not None
    assert first["checksum"] != other["checksum"]
    assert first["images"] == other["images"] == 18


def test_without_a_split_nothing_is_held_out() -> None:
    sequence = set_up()
    assert (sequence.measured_on, sequence.validation_record()) == ("test", None)
    assert sequence.measured_set is sequence.test_set
    assert len(sequence.train_set) == 72


def test_a_validation_loads_no_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bool] = []
    load = TinySequence.load
    monkeypatch.setattr(TinySequence, "load", lambda self, train: [loaded.append(train), load(self, train)][1])
    set_up("validate", validation_share=0.25)
    assert loaded == [True]


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_closed_test_images_raise_when_opened_and_nothing_else_needs_them(stage: str) -> None:
    sequence = set_up(stage, validation_share=0.25, closed_test=True)
    for opened in (lambda: sequence.test_set, sequence.test_dataloader, sequence.predict_dataloader):
        with pytest.raises(ClosedTestSetError, match="closed_test is true, so the test images must not be opened"):
            opened()
    assert sequence.data_record().test is None
    assert sequence.image_shape == (1, 8, 8)
    assert len(sequence.evaluation_loader(tasks_seen=2).order) == 12


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_a_closed_sequence_is_not_set_up_for_a_test(stage: str) -> None:
    with pytest.raises(ClosedTestSetError, match="closed_test is true, so the test images must not be opened"):
        set_up(stage, validation_share=0.25, closed_test=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TinySequence(validation_share=0.0), "validation_share must be above 0 and below 1, got 0.0"),
        (lambda: TinySequence(validation_share=1.0), "validation_share must be above 0 and below 1, got 1.0"),
        (lambda: TinySequence(validation_share=float("nan")), "validation_share must be above 0 and below 1, got nan"),
        (lambda: TinySequence(validation_per_class=0), "validation_per_class must be positive, got 0"),
        (
            lambda: TinySequence(validation_share=0.1, validation_per_class=3),
            "validation_share and validation_per_class exclude each other, got 0.1 and 3",
        ),
        (lambda: TinySequence(closed_test=True), "closed_test needs validation_share or validation_per_class"),
        (
            lambda: set_up(per_class=(12, 12, 12, 4, 12, 12), validation_per_class=4),
            "got 4, which takes 4 of the 4 images of class 3 in task 2",
        ),
        (
            lambda: set_up(per_class=(12, 1, 12, 4, 12, 12), validation_share=0.1),
            "got 0.1, which takes 1 of the 1 images of class 1 in task 1",
        ),
    ],
)
def test_wrong_splits_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_every_data_module_takes_a_split() -> None:
    digits = SplitDigits(validation_share=0.1)
    digits.setup("fit")
    per_class = digits.load(train=True)[1].bincount().tolist()
    assert digits.val_set.labels.bincount().tolist() == [round(0.1 * number) for number in per_class]
    images, labels = TinySequence().load(train=True)
    listed = list(zip(images, labels.tolist(), strict=True))
    data = TaskSequence.from_datasets(listed, listed, 3, validation_per_class=2)  # type: ignore[arg-type]
    data.setup("fit")
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (60, 12, 72)
