import pytest
import torch
from every_method import build
from tiny import random_samples, small_net
from torch.nn import functional

from ddn_lightning import DER, ConfigurationError, DataDistillNet, DERPlusPlus, Samples


def augmented(size: int) -> Samples:
    return Samples(torch.randn(size, 1, 8, 8), random_samples(size).labels, logits=torch.randn(size, 6))


def test_the_loss_is_that_of_the_paper() -> None:
    method = DER(small_net(), num_classes=6, alpha=0.3)
    current, replayed = augmented(5), augmented(4)
    loss = method.loss(current, replayed)
    expected = functional.cross_entropy(method(current.images), current.labels)
    expected = expected + 0.3 * functional.mse_loss(method(replayed.images), replayed.logits)  # over batch and classes
    assert torch.allclose(loss.total, expected)
    assert loss.rehearsal is None


def test_without_labels_of_memory_it_refuses_what_would_soften_or_repeat_them() -> None:
    with pytest.raises(ConfigurationError, match="DER cannot take a distiller: it does not rehearse labels"):
        build(DER, DataDistillNet)
    with pytest.raises(ConfigurationError, match="DER cannot take old_memory_weight = 0.5: it does not rehearse"):
        build(DER, old_memory_weight=0.5)
    assert build(DERPlusPlus, DataDistillNet, old_memory_weight=0.5).distiller is not None
