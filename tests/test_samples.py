from dataclasses import fields, replace

import pytest
import torch
from torch.nn import functional

from ddn_lightning import ConfigurationError, Samples, concatenate, cross_entropy
from ddn_lightning.samples import SelectedSamples


def make(size: int, **fields: object) -> Samples:
    return Samples(torch.rand(size, 1, 4, 4), torch.arange(size), **fields)  # type: ignore[arg-type]


def test_indexing_selects_every_field_and_drops_the_global_size() -> None:
    of_each = {"logits": torch.rand(5, 3), "tasks": torch.arange(5), "slots": torch.arange(5), "raw": torch.rand(5, 2)}
    samples = make(5, **of_each, global_size=5)
    index = torch.tensor([3, 0])

    chosen = samples[index]

    assert chosen.labels.tolist() == [3, 0]
    assert torch.equal(chosen.images, samples.images[index])
    assert chosen.logits is not None
    assert torch.equal(chosen.logits, samples.logits[index])  # type: ignore[index]
    assert (chosen.tasks.tolist(), chosen.slots.tolist()) == ([3, 0], [3, 0])  # type: ignore[union-attr]
    assert torch.equal(chosen.raw, of_each["raw"][index])  # type: ignore[arg-type]
    assert chosen.total == 2


def test_a_part_of_a_share_is_not_taken_without_its_number_on_all_ranks() -> None:
    share = make(5, global_size=9)
    with pytest.raises(
        ConfigurationError, match=r"of all 9 samples are chosen, of which this rank has 5: use samples.subset"
    ):
        share[:2]
    assert make(5, global_size=5)[:2].total == make(5).subset(torch.tensor([0, 3])).total == 2


def test_terms_of_the_mean_add_up_to_the_mean_of_the_whole() -> None:
    whole = torch.rand(5)
    shares = [make(3, global_size=5).mean(whole[::2]), make(2, global_size=5).mean(whole[1::2])]
    assert torch.allclose(sum(shares), whole.mean())


def test_cross_entropy_is_torchs() -> None:
    samples, logits = make(4), torch.randn(4, 6)
    assert torch.allclose(cross_entropy(logits, samples), functional.cross_entropy(logits, samples.labels))


def test_concatenate_keeps_what_all_parts_have() -> None:
    first, second = make(2, tasks=torch.zeros(2), slots=torch.arange(2)), make(3, tasks=torch.ones(3), global_size=7)
    joined = concatenate([first, second])
    assert joined.labels.tolist() == [0, 1, 0, 1, 2]
    assert joined.tasks is not None
    assert joined.tasks.tolist() == [0, 0, 1, 1, 1]
    assert joined.slots is None
    assert joined.total == 9


def test_to_leaves_tasks_and_slots_on_the_host() -> None:
    moved = make(2, tasks=torch.arange(2), slots=torch.arange(2), logits=torch.rand(2, 3)).to("meta")
    devices = [moved.images.device.type, moved.labels.device.type, moved.logits.device.type]  # type: ignore[union-attr]
    assert devices == ["meta"] * 3
    assert moved.tasks.device.type == moved.slots.device.type == "cpu"  # type: ignore[union-attr]


def assert_same(found: Samples, expected: Samples) -> None:
    for field in fields(Samples):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs


def test_a_selection_equals_the_copy_and_copies_no_image_until_asked_for() -> None:
    whole = make(6, logits=torch.rand(6, 3), tasks=torch.arange(6), slots=torch.arange(6), global_size=6)
    chosen = torch.tensor([4, 1, 5])
    selected, copied = SelectedSamples.of(whole, chosen), whole[chosen]

    assert len(selected) == selected.total == 3
    for index in (torch.tensor([2, 0]), torch.tensor([True, False, True]), slice(1, None)):
        assert_same(selected[index], copied[index])
    again = SelectedSamples.of(selected, torch.tensor([1]))
    assert_same(again[:], copied[1:2])
    assert "images" not in vars(selected)
    assert_same(selected, copied)
    assert selected.images is selected.images
    assert_same(selected[torch.tensor([2, 0])], copied[torch.tensor([2, 0])])


def test_a_selection_is_changed_moved_and_joined_like_a_copy() -> None:
    whole, chosen = make(4, tasks=torch.arange(4)), torch.tensor([3, 1])
    noisy = torch.tensor([0, 0])

    assert_same(replace(SelectedSamples.of(whole, chosen), labels=noisy), replace(whole[chosen], labels=noisy))
    assert_same(replace(SelectedSamples.of(whole, chosen), labels=noisy)[:1], replace(whole[chosen], labels=noisy)[:1])
    assert_same(SelectedSamples.of(whole, chosen).to("cpu"), whole[chosen])
    assert_same(concatenate([SelectedSamples.of(whole, chosen), whole]), concatenate([whole[chosen], whole]))


def test_the_mean_of_an_empty_part_is_zero_and_has_a_gradient() -> None:
    samples = Samples(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 2]))
    weight = torch.ones(3, requires_grad=True)
    none = torch.zeros(3, dtype=torch.bool)
    mean = samples.subset(none).mean(weight[none])
    mean.backward()
    assert mean.item() == 0
    assert weight.grad is not None
    assert weight.grad.tolist() == [0, 0, 0]
