import pytest
import torch
from tiny import Fit, TinySequence, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import PCR, ConfigurationError, ReplayLoss, Samples


def augmented(labels: list[int]) -> Samples:
    return Samples(torch.randn(len(labels), 1, 8, 8), torch.tensor(labels))


def by_pairs(method: PCR, batch: Samples) -> Tensor:
    """The paper's loss, sample by sample: the own proxy against that of each sample in the batch."""
    features = method.backbone(batch.images)
    losses = []
    for feature, label in zip(features, batch.labels, strict=True):
        similar = [functional.cosine_similarity(feature, method.head.weight[c], dim=0) / 0.09 for c in batch.labels]
        own = functional.cosine_similarity(feature, method.head.weight[label], dim=0) / 0.09
        losses.append(torch.stack(similar).exp().sum().log() - own)
    return torch.stack(losses)


def test_a_sample_is_contrasted_with_the_proxy_of_each_sample_of_both_batches() -> None:
    method = PCR(small_net(), num_classes=6)
    current, memory = augmented([4, 4, 5]), augmented([0, 4, 2, 0])
    loss = method.loss(current, memory)
    both = Samples(torch.cat([current.images, memory.images]), torch.cat([current.labels, memory.labels]))
    expected = by_pairs(method, both)
    assert torch.allclose(loss.total, expected.mean(), atol=1e-5)
    assert torch.allclose(loss.rehearsal, expected[3:].sum() / 7, atol=1e-5)
    assert loss.rehearsal_weight == 4 / 7


def test_classes_that_are_not_in_the_batch_get_no_gradient() -> None:
    method = PCR(small_net(), num_classes=6)
    loss = method.loss(augmented([4, 4, 5]), augmented([0, 0]))
    (gradient,) = torch.autograd.grad(loss.total, method.head.weight)
    assert (gradient[[1, 2, 3]] == 0).all()
    assert (gradient[[0, 4, 5]].abs().sum(dim=1) > 0).all()


def test_without_memory_the_incoming_batch_is_contrasted_with_itself(fit: Fit) -> None:
    steps: list[bool] = []

    class Watch(PCR):
        def current_loss(self, current: Samples) -> ReplayLoss:
            loss = super().current_loss(current)
            assert torch.allclose(loss.total, by_pairs(self, current).mean(), atol=1e-5)
            steps.append(True)
            return loss

    fit(lambda: Watch(small_net(), num_classes=6), TinySequence(batch_size=6))
    assert len(steps) == 1


def test_the_proxy_of_a_class_that_has_not_come_yet_is_never_predicted() -> None:
    method = PCR(small_net(), num_classes=6).eval()
    images = augmented([0]).images
    with torch.no_grad():
        method.head.weight[5] = method.backbone(images)[0]  # nearest to the image: nothing has moved it away
        method.is_seen_class[:4] = True
        assert method(images).argmax() == 5
        assert method.class_scores(images).argmax() == method(images)[0, :4].argmax()


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="temperature must be positive, got 0"):
        PCR(small_net(), num_classes=6, temperature=0)
