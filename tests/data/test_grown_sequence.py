"""A sequence that continues: the tasks of one, and then those of another."""

from typing import Any

import pytest
import torch
from tiny import TinyPart, TinySequence, quiet_trainer, small_net

from ddn_lightning import (
    ER,
    ConfigurationError,
    Corruptions,
    FewShot,
    GaussianDrift,
    PermutedPixels,
    RotatedImages,
    SplitDigits,
    Stream,
    TaskSequence,
)


def set_up(sequence: TaskSequence) -> TaskSequence:
    sequence.setup("fit")
    return sequence


def test_known_names_keep_their_labels_and_new_ones_are_appended() -> None:
    grown = set_up(TinyPart((0, 4)).followed_by(TinyPart((2, 8))))
    assert [classes.tolist() for classes in grown.task_classes] == [[0, 1], [2, 3], [2, 3], [4, 5], [6, 7]]
    assert grown.label_names() == [f"class {number}" for number in range(8)]
    assert grown.num_classes == 8
    for task, classes in enumerate(grown.task_classes):
        assert grown.training_samples(task).labels.unique().tolist() == classes.tolist()
        assert (grown.test_set.tasks == task).sum() == 24  # test images of its own, also of old classes
    assert not grown.stream.has_disjoint_classes
    assert TinyPart((0, 4)).followed_by(TinyPart((4, 8))).stream.has_disjoint_classes


def test_without_names_equal_labels_are_one_class() -> None:
    grown = TinySequence().followed_by(TinySequence())
    assert (grown.num_classes, grown.num_tasks) == (6, 6)
    assert [classes.tolist() for classes in grown.task_classes] == 2 * [[0, 1], [2, 3], [4, 5]]


def test_a_sequence_continued_twice_has_the_tasks_of_all_three() -> None:
    grown = TinyPart((0, 2)).followed_by(TinyPart((2, 4))).followed_by(TinyPart((4, 6)))
    assert grown.task_classes.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_its_samples_are_those_of_a_single_sequence() -> None:
    grown, single = set_up(TinyPart((0, 6)).followed_by(TinyPart((6, 10)))), set_up(TinyPart((0, 10)))
    for train in (True, False):
        for index in (torch.tensor([100, 3, 71, 72, -1]), torch.arange(120) % 5 == 0, slice(None)):
            mine, theirs = grown.served(train)[index], single.served(train)[index]
            assert torch.equal(mine.images, theirs.images)
            assert torch.equal(mine.labels, theirs.labels)
            assert torch.equal(mine.tasks, theirs.tasks)
    assert torch.equal(grown.train_plan.timeline(), single.train_plan.timeline())
    assert grown.data_record().train.images_per_class == single.data_record().train.images_per_class


def test_domains_count_on_in_either_order_of_growth() -> None:
    def domains(number: int) -> TinySequence:
        return TinySequence(num_tasks=number, stream=PermutedPixels())

    single = set_up(domains(6))
    left = domains(2).followed_by(domains(2)).followed_by(domains(2))
    right = domains(2).followed_by(domains(2).followed_by(domains(2)))
    for grown in (set_up(left), set_up(right)):
        assert grown.train_set[:].images.equal(single.train_set[:].images)
        assert grown.test_set[:].images.equal(single.test_set[:].images)


@pytest.mark.parametrize("stream", [RotatedImages, Corruptions])
def test_domains_that_are_spaced_over_all_tasks_cannot_go_on(stream: type[Stream]) -> None:
    def domains(number: int) -> TinySequence:
        return TinySequence(num_tasks=number, stream=stream())

    with pytest.raises(ConfigurationError, match=f"{stream.__name__} cannot go on: its domains are spaced over"):
        domains(3).followed_by(domains(2))
    assert TinySequence(num_tasks=3, stream=PermutedPixels()).followed_by(domains(2)).num_tasks == 5


def test_few_shots_go_on_in_the_first_new_task() -> None:
    def shots(classes: tuple[int, int]) -> TaskSequence:
        return TinyPart(classes, stream=FewShot(shots=3, from_task=2))

    grown = set_up(shots((0, 4)).followed_by(shots((4, 8))))
    assert [len(grown.training_samples(task)) for task in range(4)] == [24, 6, 6, 6]


def test_domains_count_on_where_the_first_sequence_has_ended() -> None:
    def domains(number: int) -> TinySequence:
        return TinySequence(num_tasks=number, stream=PermutedPixels())

    grown, single = set_up(domains(3).followed_by(domains(2))), set_up(domains(5))
    for task in range(5):
        assert torch.equal(grown.training_samples(task).images, single.training_samples(task).images)


def test_each_part_keeps_its_order() -> None:
    grown = set_up(TinySequence(stream=GaussianDrift()).followed_by(TinySequence()))
    assert [grown.is_ordered(task) for task in range(6)] == [True] * 3 + [False] * 3
    assert grown.train_plan.timeline().shape == (6, 6)


class Wide(TinySequence):
    def load(self, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().load(train)
        return images.repeat(1, 1, 1, 2), labels


class SameNames(TinySequence):
    class_names = ("cat", "cat", "a", "b", "c", "d")


class Padded(TinySequence):
    def __init__(self, padding: int) -> None:
        self.padding = padding
        super().__init__()


@pytest.mark.parametrize(
    ("first", "more", "message"),
    [
        (lambda: TinySequence(batch_size=6), TinySequence, "batch_size must be that of .*, 6, got 32"),
        (lambda: TinySequence(epochs_per_task=2), TinySequence, "epochs_per_task must be that of .*, 2, got 1"),
        (lambda: TinySequence(drop_last=False), TinySequence, "drop_last must be that of .*, False, got True"),
        (TinySequence, Wide, r"images must have the size of those before, .*\(1, 8, 8\), got \(1, 8, 16\)"),
        (lambda: Padded(1), lambda: Padded(2), "padding must be that of .*, 1, got 2"),
        (lambda: TinyPart(batch_size=32), TinySequence, "class names, or neither, .* but only the first has them"),
        (TinySequence, lambda: TinyPart(batch_size=32), "but only the one that follows has them"),
        (SameNames, SameNames, "class names must differ"),
    ],
)
def test_what_cannot_follow_is_refused(first: type, more: type, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        set_up(first().followed_by(more()))


def test_a_sequence_does_not_follow_itself() -> None:
    same = SplitDigits()
    with pytest.raises(ConfigurationError, match="another sequence"):
        same.followed_by(same)


def test_spare_outputs_belong_to_no_task_and_do_not_change_the_plan() -> None:
    data = set_up(TinySequence())
    plan = data.train_plan
    data.reserve(8)
    assert data.is_class_of_task.shape == (3, 8)
    assert not data.is_class_of_task[:, 6:].any()
    assert data.train_plan.timeline().shape == (3, 8)
    assert data.train_plan.checksum == plan.checksum
    data.reserve(6)
    assert data.is_class_of_task.shape == (3, 6)


def test_the_validation_images_of_both_parts_are_held_out_and_recorded() -> None:
    def part(**options: Any) -> SplitDigits:
        return SplitDigits(2, stream=PermutedPixels(), **options)

    grown = part(validation_per_class=5).followed_by(part(validation_per_class=5))
    grown.setup("fit")
    assert grown.measured_on == "validation"
    assert grown.measured_set.tasks is not None
    assert grown.measured_set.tasks.bincount().tolist() == [50] * 4
    record, of_first = grown.validation_record(), grown.first.validation_record()
    assert record is not None
    assert of_first is not None
    assert record["images"] == 2 * of_first["images"]
    with pytest.raises(ConfigurationError, match="validation must be that of the sequence that goes on"):
        part(validation_per_class=5).followed_by(part())


def test_a_sequence_that_a_trainer_has_fitted_can_be_continued_by_another() -> None:
    first = TinyPart((0, 4))
    method = ER(small_net(), num_classes=8, buffer_size=10)
    quiet_trainer().fit(method, first)
    grown = first.followed_by(TinyPart((4, 8)))
    both = ER(small_net(), num_classes=8, buffer_size=10)
    quiet_trainer().fit(both, grown)
    assert (method.tasks_finished, both.tasks_finished) == (2, 4)
