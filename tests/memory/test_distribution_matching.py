import pytest
import torch
from torch import nn

from ddn_lightning.memory.distribution_matching import (
    SiameseAugmentation,
    matching_loss,
    random_features,
    random_network,
)


@pytest.mark.parametrize(("size", "blocks"), [(32, 3), (8, 3), (4, 2)])
def test_features_are_those_of_a_convnet(size: int, blocks: int) -> None:
    images = torch.randn(5, 3, size, size)
    weights = random_network(torch.Generator().manual_seed(0), images, width=6)
    assert len(weights) == blocks
    layers = []
    for weight, bias in weights:
        convolution = nn.Conv2d(weight.shape[1], 6, 3, padding=1)
        assert weight.abs().max() <= convolution.weight.abs().max() * 1.1  # torch's own bound
        convolution.weight.data, convolution.bias.data = weight, bias  # type: ignore[union-attr]
        layers += [convolution, nn.InstanceNorm2d(6), nn.ReLU(), nn.AvgPool2d(2)]
    expected = nn.Sequential(*layers, nn.Flatten())(images)
    assert torch.allclose(random_features(images, weights), expected, atol=1e-5)


def test_the_loss_compares_means_of_the_classes_that_are_in_both() -> None:
    real, synthetic = torch.randn(6, 4), torch.randn(5, 4)
    labels, synthetic_labels = torch.tensor([3, 3, 1, 1, 1, 7]), torch.tensor([1, 3, 3, 1, 9])
    ones = (real[2:5].mean(0) - synthetic[[0, 3]].mean(0)).square().sum()
    threes = (real[:2].mean(0) - synthetic[1:3].mean(0)).square().sum()
    assert torch.allclose(matching_loss(real, labels, synthetic, synthetic_labels), ones + threes)


def test_both_batches_are_changed_alike_and_gradients_go_through() -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = set()
    images = torch.randn(4, 3, 8, 8, requires_grad=True)
    for _ in range(60):
        augment = SiameseAugmentation.draw(generator)
        kinds.add(augment.kind)
        changed = augment(images)
        assert changed.shape == images.shape
        assert torch.allclose(augment(images[:2].clone()), changed[:2], atol=1e-6)
        (gradient,) = torch.autograd.grad(changed.square().sum(), images)
        assert gradient.abs().sum() > 0
    assert kinds == {"colour", "crop", "cutout", "flip", "scale", "rotate"}


def test_each_kind_does_what_it_says() -> None:
    images = torch.randn(2, 3, 8, 8)
    assert torch.allclose(SiameseAugmentation("flip", (0.2, 0, 0))(images), images.flip(3), atol=1e-5)
    assert torch.allclose(SiameseAugmentation("flip", (0.8, 0, 0))(images), images, atol=1e-5)
    for still in ("crop", "rotate"):
        assert torch.allclose(SiameseAugmentation(still, (0.5, 0.5, 0))(images), images, atol=1e-5)
    shifted = SiameseAugmentation("crop", (0.99999999, 0.5, 0))(images)  # by an eighth of the side
    assert torch.allclose(shifted[..., :7], images[..., 1:], atol=1e-5)
    assert torch.allclose(shifted[..., 7], torch.zeros(()), atol=1e-5)
    hole = SiameseAugmentation("cutout", (0.5, 0.5, 0))(images) == 0
    assert hole.sum() == 2 * 3 * 9
    assert torch.allclose(SiameseAugmentation("colour", (0.5, 0.5, 0.5))(images), images, atol=1e-6)
