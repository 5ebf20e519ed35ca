"""A short fingerprint distinguishes datasets."""

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tiny import TinySequence, small_net

from ddn_lightning import ER, ReplayMethod
from ddn_lightning.data.data_record import DataRecord, SplitFacts

IMAGES, LABELS = TinySequence().load(train=True)
FACTS = SplitFacts.of(IMAGES, LABELS, num_classes=6)
RECORD = DataRecord(tuple("abcdef"), (0.5,), (0.25,), FACTS, FACTS)


def test_equal_images_have_equal_facts() -> None:
    assert FACTS.image_shape == (1, 8, 8)
    assert FACTS.images_per_class == (12,) * 6
    assert SplitFacts.of(IMAGES.clone(), LABELS.clone(), 6) == FACTS
    assert SplitFacts.of(IMAGES.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), LABELS, 6) == FACTS  # in memory


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (35, 0, 5, 2), (71, 0, 7, 7)])
def test_any_other_pixel_changes_the_checksum(place: tuple[int, ...]) -> None:
    images = IMAGES.clone()
    images[place] += 1
    assert SplitFacts.of(images, LABELS, 6).images_checksum != FACTS.images_checksum


def test_the_order_of_images_and_labels_counts() -> None:
    order = torch.arange(72).roll(12)
    assert SplitFacts.of(IMAGES[order], LABELS, 6).images_checksum != FACTS.images_checksum
    assert SplitFacts.of(IMAGES, LABELS[order], 6).labels_checksum != FACTS.labels_checksum


def test_the_fingerprint_of_cifar_takes_milliseconds() -> None:
    images, labels = torch.zeros(50_000, 3, 32, 32, dtype=torch.uint8), torch.zeros(50_000, dtype=torch.long)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        SplitFacts.of(images, labels, 10)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.5  # less than 0.1 s where nothing else runs


def test_a_record_survives_a_checkpoint_and_a_json_file() -> None:
    file = io.BytesIO()
    torch.save(RECORD.as_plain(), file)
    file.seek(0)
    assert DataRecord.from_plain(torch.load(file, weights_only=True)) == RECORD
    assert DataRecord.from_plain(json.loads(json.dumps(RECORD.as_plain()))) == RECORD
    assert RECORD.difference(RECORD, "the checkpoint") is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"class_names": tuple("abcxef")},
            "class_names must be those of the checkpoint, ['a', 'b', 'c', 'd', 'e', 'f'], got "
            "['a', 'b', 'c', 'x', 'e', 'f']",
        ),
        (
            {"train": replace(FACTS, images_per_class=(12, 12, 11, 12, 12, 12))},
            "the train images must be those of the checkpoint, but class c has 12 there and 11 here",
        ),
        (
            {"test": replace(FACTS, image_shape=(3, 8, 8))},
            "the test images must be those of the checkpoint, but their shape is (1, 8, 8) there and (3, 8, 8) here",
        ),
        (
            {"test": replace(FACTS, labels_checksum="0")},
            "the test images must be those of the checkpoint, but their labels come in another order",
        ),
        ({"train": replace(FACTS, images_checksum="0")}, "but their pixels differ (checksum "),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], expected: str) -> None:
    difference = RECORD.difference(replace(RECORD, **changes), "the checkpoint")
    assert difference is not None
    assert expected in difference


def test_of_many_class_names_only_the_first_difference_is_shown() -> None:
    names = [f"class{label}" for label in range(200)]
    there, here = (
        replace(RECORD, class_names=tuple(names)),
        replace(RECORD, class_names=(*names[:150], *names[151:], "z")),
    )
    expected = "class_names must be those of the checkpoint, but class 150 is 'class150' there and 'class151' here"
    assert there.difference(here, "the checkpoint") == expected
    fewer = replace(RECORD, class_names=tuple(names[:20]))
    assert there.difference(fewer, "it") == "class_names must be those of it, but there are 200 there and 20 here"


def test_only_facts_known_of_both_are_compared() -> None:
    assert RECORD.difference(replace(RECORD, train=None, class_names=None), "the checkpoint") is None
    assert replace(RECORD, train=None, class_names=None).difference(RECORD, "the checkpoint") is None


class SameOnAllRanks(Callback):
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        own = pl_module.sequence.resume_state()["data"]
        assert own == trainer.strategy.broadcast(own)
        assert own["train"] is not None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_have_the_record_of_one(fit: Callable[..., ReplayMethod], tmp_path: Any) -> None:
    saved = []
    for devices, strategy in ((1, "auto"), (2, "ddp_fork")):
        options = {"devices": devices, "strategy": strategy, "callbacks": [SameOnAllRanks(), Saving(tmp_path / "a")]}
        fit(lambda: ER(small_net(), num_classes=6, buffer_size=10), TinySequence(batch_size=12), **options)
        saved.append(torch.load(tmp_path / "a", weights_only=True)["ddn_lightning"]["sequence"]["data"])
    assert saved[0] == saved[1]


class Saving(Callback):
    def __init__(self, path: Any) -> None:
        self.path = path

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path)
