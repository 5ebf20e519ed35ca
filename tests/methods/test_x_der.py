import copy
from typing import Any

import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import (
    XDER,
    BiasAdaptor,
    ClassBalancedReservoir,
    ConfigurationError,
    LowRankMemory,
    PermutedPixels,
    Samples,
)
from ddn_lightning.methods.x_der import implanted
from ddn_lightning.networks.gradients import evaluating

TASKS = TinySequence()  # classes 0 and 1, 2 and 3, 4 and 5


class InSecondTask(XDER):
    sequence = TASKS  # type: ignore[assignment]  # without a trainer


def in_second_task(**arguments: float) -> XDER:
    method = InSecondTask(small_net(), num_classes=6, **arguments)
    method.progress.begin(1)
    method.is_seen_class[:4] = True
    return method


def excess(row: Tensor, task: int, margin: float) -> float:
    """By how much the classes to come, 4 and 5, are not a margin below those of the task."""
    own = max(row[2 * task].item(), row[2 * task + 1].item())
    return max(0.0, max(row[4].item(), row[5].item()) + margin - own)


def past_excess(row: Tensor, margin: float) -> float:
    """By how much the earlier classes, 0 and 1, are not a margin below 2 and 3, by probabilities among the four."""
    probabilities = row[:4].exp() / row[:4].exp().sum()
    return max(0.0, max(probabilities[:2]).item() + margin - max(probabilities[2:]).item())


def test_each_batch_is_classified_among_the_classes_of_its_time_with_margins_to_earlier_and_later_ones() -> None:
    method = in_second_task(beta=0.7, constraint_weight=0.3, margin=0.4)
    current = Samples(torch.randn(4, 1, 8, 8), torch.tensor([3, 2, 3, 3]))
    drawn = [Samples(torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 1, 0, 1])) for _ in range(2)]
    for samples in drawn:
        samples.logits, samples.tasks, samples.slots = (
            torch.randn(5, 6),
            torch.zeros(5, dtype=torch.long),
            torch.arange(5),
        )
    new, first, second = (method(part.images).detach() for part in (current, *drawn))
    among_new = functional.cross_entropy(new[:, 2:4], current.labels - 2)
    distance = functional.mse_loss(first, drawn[0].logits)
    among_old = functional.cross_entropy(second[:, :2], drawn[1].labels)
    margins = [sum(excess(row, task, 0.4) for row in rows) / len(rows) for rows, task in ((new, 1), (second, 0))]
    to_earlier = sum(past_excess(row, 0.4) for row in new) / len(new)
    assert min(*margins, to_earlier) > 0
    loss = method.loss(current, *drawn)
    assert torch.allclose(loss.other, among_new + 0.1 * distance + 0.3 * (sum(margins) + to_earlier), atol=1e-6)
    assert torch.allclose(loss.rehearsal, 0.7 * among_old, atol=1e-6)
    assert torch.allclose(method.current_loss(current).total, among_new + 0.3 * (margins[0] + to_earlier), atol=1e-6)


def test_the_margin_to_earlier_classes_raises_the_newest_and_does_not_push_down_the_best_of_the_others() -> None:
    method = in_second_task(constraint_weight=1.0, margin=2.0)
    current = Samples(torch.zeros(1, 1, 8, 8), torch.tensor([2]))
    logits = torch.tensor([[0.3, -0.2, 0.1, 0.0, -9.0, -9.0]], requires_grad=True)
    method.logits_of = lambda _: logits  # type: ignore[method-assign]  # in place of a forward pass
    (gradient,) = torch.autograd.grad(method.current_loss(current).total, logits)
    free = logits.detach().requires_grad_()
    probabilities = free[:, :4].softmax(dim=1)
    among_new = functional.cross_entropy(free[:, 2:4], torch.tensor([0]))
    expected = torch.autograd.grad(among_new - probabilities[0, 2], free)[0]  # that of class 0 is a constant
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_implanted_logits_stay_below_the_stored_one_of_the_true_class_if_that_is_positive() -> None:
    stored, logits, labels = 1 + torch.rand(50, 6), 4 * torch.rand(50, 6), torch.randint(2, (50,))
    is_later = torch.tensor([False, False, True, True, True, True])
    found = implanted(stored, logits, labels, is_later, gamma=0.85)
    assert torch.equal(found[:, :2], stored[:, :2])
    for new, own, row in zip(found[:, 2:], stored[torch.arange(50), labels], logits[:, 2:], strict=True):
        factor = 1.0 if row.max() <= own else 0.85 * own / row.max()
        assert torch.allclose(new, factor * row)
        assert new.max() <= own


def test_a_negative_stored_logit_turns_the_order_of_the_implanted_ones() -> None:
    stored, logits = torch.tensor([[-2.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, -5.0]])
    found = implanted(stored, logits, torch.tensor([0]), torch.tensor([False, True, True]), gamma=0.85)
    assert torch.allclose(found, torch.tensor([[-2.0, -1.7, 8.5]]))


class Watch(XDER):
    """Notes the logits at the end of each task, with the statistics of the memory, and those stored after each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_task_ends: list[tuple[Samples, Tensor]] = []
        self.steps: list[tuple[Samples, Tensor, Samples]] = []

    def after_step(self) -> None:
        replayed = self._replayed
        super().after_step()
        if replayed is not None:
            self.steps.append((*replayed, self.memory[replayed[0].slots]))

    def end_task(self) -> None:
        super().end_task()
        held = self.memory[self.memory.slots]
        images, network = self.normalised(held.images), copy.deepcopy(self.network)
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = 1.0  # the statistics are those of the last batch, the whole memory
        network.train()(images)
        self.at_task_ends.append((held, network.eval()(images)))


def watched(fit: Fit) -> Watch:
    found = fit(lambda: build(Watch, buffer_size=20, replay_batch_size=20, memory=ClassBalancedReservoir()))
    assert isinstance(found, Watch)
    return found


def test_at_a_tasks_end_its_samples_get_logits_and_earlier_ones_those_of_later_classes(fit: Fit) -> None:
    first, second, _ = watched(fit).at_task_ends
    assert torch.allclose(first[0].logits, first[1], atol=1e-6)
    held, logits = second
    known = {row.images.numpy().tobytes(): row.logits for row in (first[0][i : i + 1] for i in range(len(first[0])))}
    for index in range(len(held)):
        row, is_old = held.logits[index], int(held.tasks[index]) == 0
        kept, new = (slice(0, 2), slice(2, 6)) if is_old else (slice(2, 6), slice(0, 2))
        before = known[held.images[index].numpy().tobytes()][0] if is_old else logits[index]
        assert torch.allclose(row[kept], before[kept], atol=1e-6)
        own, highest = before[held.labels[index]], logits[index, new].max()
        factor = 0.85 * own / highest if highest > own else 1.0
        assert torch.allclose(row[new], factor * logits[index, new], atol=1e-6)


def test_stored_logits_have_the_statistics_of_the_memory_and_leave_the_running_ones_alone(fit: Fit) -> None:
    class WithStatistics(Watch):
        def end_task(self) -> None:
            before = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
            super().end_task()
            assert before
            assert all(torch.equal(buffer, before[name]) for name, buffer in self.network.named_buffers())

    method = fit(lambda: build(WithStatistics, buffer_size=20, replay_batch_size=20))
    held, logits = method.at_task_ends[-1]
    with evaluating(method.network):
        by_running = method(method.normalised(held.images))
    is_new = held.tasks == 2
    assert torch.allclose(held.logits[is_new][:, 4:], logits[is_new][:, 4:], atol=1e-4)
    assert not torch.allclose(held.logits[is_new][:, 4:], by_running[is_new][:, 4:], atol=1e-2)


def test_with_an_adaptor_the_logits_stored_are_those_that_the_loss_sees(fit: Fit) -> None:
    adaptor = BiasAdaptor(lr=0.1)
    method = fit(
        lambda: build(Watch, lambda: adaptor, buffer_size=20, replay_batch_size=20, memory=ClassBalancedReservoir())
    )
    held, logits = method.at_task_ends[-1]
    is_new = held.tasks == 2
    adapted = logits + adaptor.correction(logits.softmax(dim=1))
    assert not torch.allclose(adapted[is_new], logits[is_new], atol=1e-3)
    assert torch.allclose(held.logits[is_new][:, 4:], adapted[is_new][:, 4:], atol=1e-6)


def test_replayed_samples_get_the_logits_of_a_random_one_of_their_draws(fit: Fit) -> None:
    steps = watched(fit).steps
    assert {task for replayed, _, _ in steps for task in replayed.tasks.tolist()} == {0, 1}
    in_second = [step for step in steps if step[0].tasks.max() == 0][:3]
    drawn: set[int] = set()
    kept = 0
    for replayed, logits, after in in_second:
        expected = implanted(replayed.logits, logits, replayed.labels, torch.arange(6) >= 2, gamma=0.85)
        for row, slot in enumerate(replayed.slots.tolist()):
            is_kept = torch.equal(after.logits[row], replayed.logits[row])
            assert is_kept or torch.allclose(after.logits[row], expected[row])
            assert slot in drawn or not is_kept  # the first draw in a task counts with certainty
            kept += is_kept
            drawn.add(slot)
    assert kept


def test_two_ranks_store_the_logits_of_one(fit: Fit) -> None:
    def trained(**arguments: object) -> XDER:
        sequence = TinySequence(batch_size=5, drop_last=False)
        found = fit(lambda: build(XDER, backbone=small_net()).double(), sequence, **arguments)
        assert isinstance(found, XDER)
        return found

    one, two = trained(), trained(devices=2, strategy="ddp_fork")
    for name, parameter in one.named_parameters():
        assert (parameter - two.get_parameter(name)).abs().max() < 1e-9, name


def test_what_it_cannot_do_is_refused(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="gamma must be between 0 and 1, got 2"):
        XDER(small_net(), num_classes=6, gamma=2.0)
    with pytest.raises(ConfigurationError, match="memory of XDER must be an object of class SlotBuffer, got a LowRank"):
        XDER(small_net(), num_classes=6, memory=LowRankMemory())
    with pytest.raises(ConfigurationError, match="XDER cannot learn PermutedPixels, where a class comes in several"):
        fit(lambda: build(XDER), TinySequence(stream=PermutedPixels()))
