"""Theorems 1 and 2 of the DDN paper, in numbers.

As the learning rate of the virtual step goes to zero, the gradient of the bi-level objective divided by it tends to the
gradient of minus the inner product of two gradients: on the memory, and on the memory before with the task's data. Of
first order: a tenth of the learning rate leaves a tenth of the difference.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import DataDistillNet, Samples
from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.hypergradient import FrozenNetwork, pixel_surrogate, surrogate
from ddn_lightning.distill.label_distiller import soft_cross_entropy

CLASSES, LEARNING_RATES = 4, (1e-3, 1e-4, 1e-5)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 12), nn.Tanh(), nn.Linear(12, CLASSES)).double()


def with_batch_norm() -> nn.Module:
    """Smooth: at the kinks of a ReLU the difference would jump."""
    layers = (nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, CLASSES))
    return nn.Sequential(*layers).double().train()


def batch(size: int) -> Samples:
    return Samples(torch.randn(size, 3, 8, 8, dtype=torch.float64), torch.randint(CLASSES, (size,)))


def minus_inner_product(network: nn.Module, memory_loss: Tensor, before_and_task: list[Samples]) -> Tensor:
    """The objective of the theorems, differentiable by all inputs of the memory's loss."""
    parameters = list(network.parameters())
    on_memory = torch.autograd.grad(memory_loss, parameters, create_graph=True)
    losses = [functional.cross_entropy(network(part.images), part.labels) for part in before_and_task]
    on_the_rest = torch.autograd.grad(torch.stack(losses).sum(), parameters)
    return -torch.stack([(g * v).sum() for g, v in zip(on_memory, on_the_rest, strict=True)]).sum()


def assert_first_order(differences: list[float]) -> None:
    assert differences[-1] < 1e-2
    for larger, smaller in pairwise(differences):
        assert larger / smaller == pytest.approx(10, rel=0.15)


def relative(found: list[Tensor], limit: list[Tensor]) -> float:
    found_vector, limit_vector = (torch.cat([g.flatten() for g in part]) for part in (found, limit))
    assert limit_vector.norm() > 0
    return float((found_vector - limit_vector).norm() / limit_vector.norm())


@pytest.mark.parametrize("make", [perceptron, with_batch_norm])
def test_theorem_1_for_the_images_and_labels_of_the_whole_memory(make: Callable[[], nn.Module]) -> None:
    network, memory, rest = make(), batch(6), [batch(5), batch(7)]
    images = memory.images.requires_grad_()
    labels = torch.rand(6, CLASSES, dtype=torch.float64).softmax(1).requires_grad_()
    memory_loss = soft_cross_entropy(network(images), memory, labels)
    limit = torch.autograd.grad(minus_inner_product(network, memory_loss, rest), [images, labels])

    differences = []
    for lr in LEARNING_RATES:
        inner_loss = partial(soft_cross_entropy, samples=memory, labels=labels)
        value = pixel_surrogate(FrozenNetwork(network), memory, lambda z, f=inner_loss: f(z), rest, lr)
        found = torch.autograd.grad(value / lr, [images, labels])
        differences.append(relative(list(found), list(limit)))
    assert_first_order(differences)


@pytest.mark.parametrize("make", [perceptron, with_batch_norm])
def test_theorem_2_for_the_parameters_of_the_hypernetwork(make: Callable[[], nn.Module]) -> None:
    network, memory, rest = make(), batch(6), [batch(5), batch(7)]
    distiller = DataDistillNet()
    distiller.build(CLASSES, buffer_size=6)
    distiller = distiller.double()
    omega = list(distiller.generator_net.parameters())

    def inner_loss(logits: Tensor) -> Tensor:
        labels = distiller.soft_labels(memory, logits.detach().softmax(1))
        return distiller.inner_loss(logits, memory, labels)

    limit = torch.autograd.grad(minus_inner_product(network, inner_loss(network(memory.images)), rest), omega)
    differences = []
    for lr in LEARNING_RATES:
        look_ahead = hypergradient.exact(FrozenNetwork(network), memory, inner_loss, rest, lr)
        found = torch.autograd.grad(surrogate(look_ahead, inner_loss, lr) / lr, omega)
        differences.append(relative(list(found), list(limit)))
    assert_first_order(differences)
