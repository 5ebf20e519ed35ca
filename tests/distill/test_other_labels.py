"""The distillers other than Data-Distill-Net."""

import copy
from typing import Any

import pytest
import torch
from tiny import Fit, random_samples, small_net
from torch import Tensor, nn

from ddn_lightning import (
    CLSER,
    ER,
    ERACE,
    ConfigurationError,
    DERPlusPlus,
    LabelDistiller,
    LabelSmoothing,
    LearnedLabels,
    RandomLabels,
    ReplayLoss,
    Samples,
)
from ddn_lightning.distill.label_distiller import soft_cross_entropy
from ddn_lightning.distill.learned_labels import RowAdam
from ddn_lightning.random_streams import RandomStreams


def built(distiller: LabelDistiller, buffer_size: int = 10) -> LabelDistiller:
    distiller.build(6, buffer_size)
    distiller.streams = RandomStreams(0)
    return distiller


def labels_of(distiller: LabelDistiller, samples: Samples) -> Tensor:
    return distiller.soft_labels(samples, torch.randn(len(samples), 6).softmax(1))


def test_soft_cross_entropy_is_torchs() -> None:
    samples, logits, labels = random_samples(5), torch.randn(5, 6), torch.randn(5, 6).softmax(1)
    assert torch.allclose(soft_cross_entropy(logits, samples, labels), nn.functional.cross_entropy(logits, labels))


def test_label_smoothing_by_hand() -> None:
    samples = Samples(torch.zeros(1, 1, 8, 8), torch.tensor([4]))
    everywhere = labels_of(built(LabelSmoothing(epsilon=0.6)), samples)
    assert torch.allclose(everywhere, torch.tensor([[0.1, 0.1, 0.1, 0.1, 0.5, 0.1]]))
    old_only = built(LabelSmoothing(epsilon=0.6, old_classes_only=True))
    old_only.begin_task(torch.tensor([True, True, False, True, False, False]))
    assert torch.allclose(labels_of(old_only, samples), torch.tensor([[0.2, 0.2, 0.0, 0.2, 0.4, 0.0]]))
    with pytest.raises(ConfigurationError, match="epsilon must be between 0 and 1, got 1.5"):
        LabelSmoothing(epsilon=1.5)


def test_random_labels_are_fresh_noise_around_the_hard_label() -> None:
    samples = random_samples(50)
    halves = built(RandomLabels())
    first, second = labels_of(halves, samples), labels_of(halves, samples)
    assert not torch.equal(first, second)
    assert torch.allclose(first.sum(1), torch.ones(50))
    assert (first.gather(1, samples.labels[:, None]) >= 0.5).all()
    weaker = labels_of(built(RandomLabels(form="sum")), samples)
    assert torch.allclose(weaker.sum(1), torch.ones(50))
    assert 0.3 < weaker.gather(1, samples.labels[:, None]).mean() < 0.45  # (1 + u) / (1 + sum of six u)


def test_old_classes_only_leaves_the_first_task_alone(fit: Fit) -> None:
    make = lambda: LabelSmoothing(epsilon=0.5, old_classes_only=True, apply_from_task=1)  # noqa: E731
    method = fit(lambda: ER(small_net(), num_classes=6, distiller=make()))
    assert method.head.weight.isfinite().all()
    samples = random_samples(3)
    assert torch.equal(labels_of(built(make()), samples), torch.eye(6)[samples.labels])


@pytest.mark.parametrize(
    "make",
    [
        lambda **kwargs: ER(small_net(), num_classes=6, **kwargs),
        lambda **kwargs: ER(small_net(), num_classes=6, replay_weight=2.0, **kwargs),
        lambda **kwargs: ER(small_net(), num_classes=6, batches="concatenated", **kwargs),
        lambda **kwargs: DERPlusPlus(small_net(), num_classes=6, **kwargs),
        lambda **kwargs: CLSER(small_net(), num_classes=6, **kwargs),
        lambda **kwargs: ERACE(small_net(), num_classes=6, **kwargs),
    ],
)
def test_replacing_labels_by_themselves_is_the_method_alone(fit: Fit, make: Any) -> None:
    alone = fit(make)
    replaced = fit(lambda: make(distiller=LabelSmoothing(epsilon=0.0, apply_from_task=1)))
    assert torch.allclose(alone.head.weight, replaced.head.weight, atol=1e-6)


def test_hard_labels_on_old_memory_are_the_control_of_er(fit: Fit) -> None:
    """A distiller and the control draw the same samples."""
    control = fit(lambda: ER(small_net(), num_classes=6, old_memory_weight=1.0))
    hard = LabelSmoothing(epsilon=0.0, memory="old", compose="additive")
    plugged = fit(lambda: ER(small_net(), num_classes=6, distiller=hard))
    assert torch.allclose(control.head.weight, plugged.head.weight, atol=1e-6)


def test_replacing_puts_the_soft_loss_in_the_place_of_the_hard_one() -> None:
    distiller = built(LabelSmoothing(epsilon=0.3, alpha=2.0, apply_from_task=1))
    method = ER(small_net(), num_classes=6)
    method.progress.begin(0)
    samples, logits = random_samples(5), torch.randn(5, 6)
    hard = ReplayLoss(torch.tensor(7.0), torch.randn(4, 6), torch.tensor(3.0), logits, rehearsed=samples)
    replaced = distiller.add_to(hard, method, random_samples(4))
    soft = soft_cross_entropy(logits, samples, labels_of(distiller, samples))
    assert torch.allclose(replaced.total, 7 + 2 * soft)
    added = built(LabelSmoothing(epsilon=0.3, alpha=2.0, apply_from_task=1, compose="additive"))
    assert torch.allclose(added.add_to(hard, method, random_samples(4)).total, 7 + 3 + 2 * soft)


def test_learned_labels_start_uniform_and_follow_their_slot() -> None:
    distiller = built(LearnedLabels())
    assert isinstance(distiller, LearnedLabels)
    samples = random_samples(3)
    samples.slots = torch.tensor([7, 2, 7])
    hard = torch.eye(6)[samples.labels]
    assert torch.allclose(labels_of(distiller, samples), 0.5 * hard + 0.5 / 6)
    with torch.no_grad():
        distiller.rows[7, 1] = 100.0
    expected = 0.5 * hard + 0.5 * torch.stack([torch.eye(6)[1], torch.full((6,), 1 / 6), torch.eye(6)[1]])
    assert torch.allclose(labels_of(distiller, samples), expected)


def test_rows_and_moments_of_overwritten_slots_are_fresh(fit: Fit) -> None:
    overwritten = []

    class Watch(LearnedLabels):
        def reset_slots(self, slots: Tensor) -> None:
            before = self.rows.detach().clone()
            super().reset_slots(slots)
            kept = torch.ones(len(self.rows), dtype=torch.bool)
            kept[slots] = False
            state = self.optimizer.state[self.rows]
            assert all((moment[slots] == 0).all() for moment in (self.rows, *state.values()))
            assert torch.equal(self.rows[kept], before[kept])
            overwritten.append((len(slots), bool((before[slots] != 0).any())))

    method = fit(lambda: ER(small_net(), num_classes=6, buffer_size=20, distiller=Watch(lr=0.1)))
    assert any(number and had_learned for number, had_learned in overwritten)
    assert (method.distiller.rows != 0).any()  # type: ignore[union-attr,operator]


def test_row_adam_is_adam_on_each_row_that_has_a_gradient() -> None:
    start = torch.randn(4, 3, dtype=torch.float64)
    rows = nn.Parameter(start.clone())
    by_row = RowAdam([rows], lr=0.1)
    alone = [nn.Parameter(row.clone()) for row in start]
    adams = [torch.optim.Adam([row], lr=0.1) for row in alone]
    for step in range(12):
        gradient = torch.randn_like(start)
        moved = [row for row in range(4) if (step + row) % 3]
        rows.grad = torch.zeros_like(start)
        for row in moved:
            rows.grad[row] = alone[row].grad = gradient[row]
            adams[row].step()
        by_row.step()
    assert torch.allclose(rows, torch.stack(list(alone)), atol=1e-12)


def test_row_adam_is_saved_and_restored() -> None:
    def step(rows: nn.Parameter, optimizer: RowAdam) -> None:
        rows.grad = torch.arange(6.0).view(2, 3) - 2
        optimizer.step()

    first = nn.Parameter(torch.zeros(2, 3))
    one = RowAdam([first])
    step(first, one)
    second = nn.Parameter(first.detach().clone())
    other = RowAdam([second])
    other.load_state_dict(copy.deepcopy(one.state_dict()))  # as from a file
    step(first, one)
    step(second, other)
    assert torch.equal(first, second)


@pytest.mark.parametrize("make", [LabelSmoothing, RandomLabels, LearnedLabels])
def test_each_distiller_changes_what_the_classifier_learns(fit: Fit, make: Any) -> None:
    plain = fit(lambda: ER(small_net(), num_classes=6))
    soft = fit(lambda: ER(small_net(), num_classes=6, distiller=make()))
    again = fit(lambda: ER(small_net(), num_classes=6, distiller=make()))
    assert not torch.equal(plain.head.weight, soft.head.weight)
    assert torch.equal(soft.head.weight, again.head.weight)
