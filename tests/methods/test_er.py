from typing import Any

import pytest
import torch
from tiny import DropoutNet, Fit, TinySequence, random_samples, small_net
from torch.nn import functional

from ddn_lightning import ER, ConfigurationError, Finetune, ReplayMethod, Samples, SmallNet, SplitDigits


def augmented(size: int) -> Samples:
    samples = random_samples(size)
    return Samples(torch.randn(size, 1, 8, 8), samples.labels, tasks=samples.tasks)


def test_separate_batches_are_two_forwards_whose_means_are_summed() -> None:
    method = ER(DropoutNet().eval(), num_classes=6, replay_weight=2.0)
    current, memory = augmented(5), augmented(3)
    loss = method.loss(current, memory)
    hard = functional.cross_entropy
    assert torch.allclose(loss.other, hard(method(current.images), current.labels))
    assert torch.allclose(loss.rehearsal, 2 * hard(method(memory.images), memory.labels))
    assert torch.allclose(loss.total, loss.other + loss.rehearsal)
    assert torch.equal(loss.current_logits, method(current.images))
    assert torch.equal(loss.memory_logits, method(memory.images))


def test_separate_batches_have_batch_norm_statistics_of_their_own() -> None:
    backbone = DropoutNet()
    backbone.layers[-1] = torch.nn.Identity()
    current, memory = augmented(5), augmented(3)
    apart, together = (ER(backbone, num_classes=6, batches=b) for b in ("separate", "concatenated"))
    together.head = apart.head
    both = torch.cat([current.images, memory.images])
    assert torch.allclose(apart.loss(current, memory).memory_logits, apart(memory.images))
    assert torch.allclose(together.loss(current, memory).memory_logits, apart(both)[5:])
    assert not torch.allclose(apart(both)[5:], apart(memory.images))


def test_concatenated_batches_are_one_mean() -> None:
    method = ER(small_net(), num_classes=6, batches="concatenated")
    current, memory = augmented(5), augmented(3)
    logits = method(torch.cat([current.images, memory.images]))
    expected = functional.cross_entropy(logits, torch.cat([current.labels, memory.labels]))
    assert torch.allclose(method.loss(current, memory).total, expected)


def test_the_extra_draw_holds_old_tasks_only(fit: Fit) -> None:
    draws = []  # the task at hand, and the tasks drawn

    class Spy(ER):
        def draw_memory(self, tasks: Any = None, generator: Any = None) -> Samples | None:
            drawn = super().draw_memory(tasks, generator)
            if tasks is not None:
                draws.append((self.task, [] if drawn is None else drawn.tasks.unique().tolist()))  # type: ignore[union-attr]
            return drawn

    fit(lambda: Spy(small_net(), num_classes=6, buffer_size=20, old_memory_weight=1.0))
    assert all(tasks == list(range(task)) for task, tasks in draws)
    assert {task for task, _ in draws} == {0, 1, 2}


def test_the_extra_draw_leaves_the_methods_own_draws_alone(fit: Fit) -> None:
    """In the first task there is no old memory, so the two must agree there; afterwards the draws must."""
    sampled: dict[float, list[Any]] = {}
    for weight in (0.0, 1.0):
        slots = sampled.setdefault(weight, [])

        class Spy(ER):
            def loss(self, current: Samples, *memory: Samples, slots: list[Any] = slots) -> Any:
                slots.append((memory[0].slots.tolist(), memory[0].images.sum().item()))  # type: ignore[union-attr]
                return super().loss(current, *memory)

        fit(lambda weight=weight: Spy(small_net(), num_classes=6, buffer_size=20, old_memory_weight=weight))
    assert sampled[0.0] == sampled[1.0]
    assert len(sampled[0.0]) == 11  # every step but the first


def test_old_memory_weight_changes_the_outcome(fit: Fit) -> None:
    def weights(**arguments: Any) -> torch.Tensor:
        return fit(lambda: ER(small_net(), num_classes=6, **arguments)).head.weight

    plain = weights()
    assert torch.equal(plain, weights())
    assert torch.equal(plain, weights(old_memory_weight=0.0, replay_weight=1.0))
    assert not torch.equal(plain, weights(old_memory_weight=1.0))
    assert not torch.equal(plain, weights(replay_weight=2.0))
    assert not torch.equal(plain, weights(batches="concatenated"))


def test_without_replay_weight_it_is_fine_tuning(fit: Fit) -> None:
    class Unaugmented(TinySequence):  # augmenting the memory's draws would shift the stream of augmentation
        padding, flip = 0, False

    silent = fit(lambda: ER(small_net(), num_classes=6, replay_weight=0.0), Unaugmented(batch_size=6))
    finetuned = fit(lambda: Finetune(small_net(), num_classes=6), Unaugmented(batch_size=6))
    assert torch.allclose(silent.head.weight, finetuned.head.weight)


def test_er_forgets_less_than_fine_tuning(fit: Fit) -> None:
    def accuracy(method_class: type[ReplayMethod]) -> float:
        sequence = SplitDigits(batch_size=16, epochs_per_task=3)
        method = fit(lambda: method_class(SmallNet(), num_classes=10, buffer_size=100), sequence)
        return method.accuracy_matrix[-1].mean().item()

    assert accuracy(Finetune) < 25 < 70 < accuracy(ER)


def test_wrong_weights_are_named() -> None:
    with pytest.raises(ConfigurationError, match="replay_weight must be zero or positive, got -1"):
        ER(small_net(), num_classes=6, replay_weight=-1.0)
