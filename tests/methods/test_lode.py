import pytest
import torch
from tiny import Fit, TinySequence, random_samples, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import LODE, Blurry, ConfigurationError, GaussianDrift, ReplayLoss, Samples
from ddn_lightning.data import Stream


def in_third_task(**arguments: float) -> LODE:
    """Classes 0 to 2 are old, 3 is new, 4 and 5 are still to come."""
    method = LODE(small_net(), num_classes=6, **arguments)
    method.is_old_class[:3] = True
    method.is_seen_class[:4] = True
    return method


def by_hand(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Two classifications of each new sample: new or old, and which of the new classes."""
    losses = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        groups = torch.stack([row[:3].logsumexp(0), row[3:].logsumexp(0)])
        against_old = functional.cross_entropy(groups[None], torch.tensor([1]))
        among_new = functional.cross_entropy(row[None, 3:], torch.tensor([label - 3]))
        losses.append(weight * against_old + among_new)
    return torch.stack(losses)


def test_new_classes_are_told_from_old_ones_with_a_weight_and_from_each_other() -> None:
    method = in_third_task(rho=0.6)
    current = Samples(torch.randn(5, 1, 8, 8), torch.tensor([3, 5, 4, 3, 3]))
    loss = method.current_loss(current)
    weight = 0.6 / 3  # one new class, three old ones
    assert torch.allclose(loss.total, by_hand(method(current.images), current.labels, weight).mean(), atol=1e-6)


def test_with_weight_one_both_parts_are_the_cross_entropy() -> None:
    method = in_third_task(rho=3.0)
    current = Samples(torch.randn(4, 1, 8, 8), torch.tensor([3, 0, 2, 3]))  # an old class has it with any weight
    expected = functional.cross_entropy(method(current.images), current.labels)
    assert torch.allclose(method.current_loss(current).total, expected, atol=1e-6)


def test_the_rest_is_dark_experience_replay() -> None:
    method = in_third_task()
    current = Samples(torch.randn(4, 1, 8, 8), torch.full((4,), 3))
    memory = [Samples(torch.randn(5, 1, 8, 8), random_samples(5).labels, logits=torch.randn(5, 6)) for _ in range(2)]
    loss = method.loss(current, *memory)
    distance = functional.mse_loss(method(memory[0].images), memory[0].logits)
    rehearsal = functional.cross_entropy(method(memory[1].images), memory[1].labels)
    new = method.current_loss(current).total
    assert torch.allclose(loss.total, new + 0.2 * distance + 0.5 * rehearsal, atol=1e-6)


@pytest.mark.parametrize("stream", [None, Blurry(disjoint=0.2, blur=0.5), GaussianDrift()])
def test_old_classes_are_those_of_earlier_tasks_or_where_none_are_told_those_that_came(
    fit: Fit, stream: Stream | None
) -> None:
    came: list[set[int]] = [set(), set(), set()]  # in each task
    old: list[set[int]] = [set(), set(), set()]

    class Watch(LODE):
        def current_loss(self, current: Samples) -> ReplayLoss:
            loss = super().current_loss(current)
            assert loss.total.isfinite()
            assert loss.total < 20  # a masked class would have 1e38
            came[self.task] |= set(current.labels.tolist())
            old[self.task] = set(self.is_old_class.nonzero().flatten().tolist())
            return loss

    fit(lambda: Watch(small_net(), num_classes=6), TinySequence(batch_size=6, stream=stream))
    assert old == [set(), came[0], came[0] | came[1]]
    assert [len(classes) for classes in old] == [0, 2, 4] if stream is None else came[0] & came[1]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rho must be zero or positive, got -1"):
        LODE(small_net(), num_classes=6, rho=-1.0)
