import torch
from tiny import Fit, random_samples, small_net
from torch.nn import functional

from ddn_lightning import DERPlusPlus, Samples


def augmented(size: int) -> Samples:
    return Samples(torch.randn(size, 1, 8, 8), random_samples(size).labels, logits=torch.randn(size, 6))


def test_the_loss_is_that_of_the_paper() -> None:
    method = DERPlusPlus(small_net(), num_classes=6, alpha=0.3, beta=0.7)
    current, first, second = augmented(5), augmented(4), augmented(3)
    loss = method.loss(current, first, second)
    expected = functional.cross_entropy(method(current.images), current.labels)
    expected = expected + 0.3 * functional.mse_loss(method(first.images), first.logits)  # over batch and classes
    assert torch.allclose(loss.other, expected)
    assert torch.allclose(loss.rehearsal, 0.7 * functional.cross_entropy(method(second.images), second.labels))
    assert torch.equal(loss.memory_logits, method(second.images))


def test_both_draws_are_independent_and_outputs_are_never_refreshed(fit: Fit) -> None:
    draws, stored = [], {}

    class Watch(DERPlusPlus):
        def loss(self, current: Samples, *memory: Samples):  # type: ignore[no-untyped-def]
            draws.append([draw.slots.tolist() for draw in memory])  # type: ignore[union-attr]
            held = self.memory[torch.arange(len(self.memory))]
            for image, logits in zip(held.images, held.logits, strict=True):
                key = tuple(image.flatten().tolist())
                assert torch.equal(stored.setdefault(key, logits.clone()), logits)
            return super().loss(current, *memory)

    fit(lambda: Watch(small_net(), num_classes=6, buffer_size=20, replay_batch_size=5))
    assert sum(first != second for first, second in draws) >= 9
