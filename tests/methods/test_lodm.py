from typing import Any

import pytest
import torch
from tiny import Fit, TinySequence, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import (
    DER,
    ER,
    LODE,
    ConfigurationError,
    DERPlusPlus,
    LearnedLabels,
    LoDM,
    LowRankMemory,
    Samples,
    SmallNet,
    SplitDigits,
)
from ddn_lightning.metrics.functional import average_accuracy


def test_synthetic_images_are_rehearsed_within_the_budget(fit: Fit) -> None:
    rehearsed: set[int] = set()

    class Watch(LoDM):
        def replay_losses(self, logits: Tensor, replayed: Samples) -> Tensor:
            rehearsed.update(replayed.labels.tolist())
            held = self.memory[replayed.slots]
            assert torch.equal(held.labels, replayed.labels)
            return super().replay_losses(logits, replayed)

        def on_train_batch_end(self, *args: object) -> None:
            super().on_train_batch_end(*args)  # type: ignore[arg-type]
            assert isinstance(self.memory, LowRankMemory)
            assert 0 < sum(self.memory._fields[name].numel() for name in ("left", "right")) <= 12 * 64

    method = fit(
        lambda: Watch(small_net(), num_classes=6, buffer_size=12, memory=LowRankMemory(matching_width=4)),
        TinySequence(batch_size=4),
    )
    assert rehearsed == set(range(6))
    assert len(method.memory) == 24  # two 8 x 8 images of rank 2 in the room of one


def test_one_pass_over_digits_is_remembered_and_from_noise_it_would_not_be(fit: Fit) -> None:
    """The online setting in which ER keeps about 85 %: with the usual eight steps per task, no method learns a task."""

    def accuracy(**options: Any) -> float:
        def lodm() -> LoDM:
            memory = LowRankMemory(matching_width=16, **options)
            return LoDM(SmallNet(), num_classes=10, buffer_size=100, lr=0.1, memory=memory)

        return float(average_accuracy(fit(lodm, SplitDigits(batch_size=8)).accuracy_matrix))

    assert accuracy() > 70
    assert accuracy(init="noise", matching_lr=0.1) < 50


def test_the_loss_is_that_of_experience_replay() -> None:
    method = LoDM(small_net(), num_classes=6)
    current, memory = (Samples(torch.randn(n, 1, 8, 8), torch.randint(6, (n,))) for n in (4, 7))
    loss = method.loss(current, memory)
    assert torch.allclose(loss.other, functional.cross_entropy(method(current.images), current.labels))
    assert torch.allclose(loss.rehearsal, functional.cross_entropy(method(memory.images), memory.labels))


@pytest.mark.parametrize("method_class", [LoDM, ER])
def test_labels_of_stored_images_are_refused(fit: Fit, method_class: type[ER]) -> None:
    with pytest.raises(ConfigurationError, match="LearnedLabels, .*, cannot take a LowRankMemory"):
        fit(lambda: method_class(small_net(), num_classes=6, memory=LowRankMemory(), distiller=LearnedLabels()))


@pytest.mark.parametrize("method_class", [DER, DERPlusPlus, LODE])
def test_methods_that_store_logits_refuse_learned_images(method_class: type[DER]) -> None:
    with pytest.raises(ConfigurationError, match=f"memory of {method_class.__name__} must be an .* SlotBuffer"):
        method_class(small_net(), num_classes=6, memory=LowRankMemory())


def test_a_memory_too_small_for_the_last_task_is_refused_before_the_first(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="room for an image of rank 2 of each of 6 classes, got 2"):
        fit(lambda: LoDM(small_net(), num_classes=6, buffer_size=2))


@pytest.mark.parametrize("name", ["rank", "matching_lr", "matching_width", "matching_batch_size"])
def test_errors_name_the_argument(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be positive, got -1"):
        LoDM(small_net(), num_classes=6, memory=LowRankMemory(**{name: -1}))  # type: ignore[arg-type]
