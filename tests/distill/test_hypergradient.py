"""Every mode against an independent reference: unrolled double backward, finite differences, closed forms."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddn_lightning import ResNet18, Samples
from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.hypergradient import FrozenNetwork, pixel_surrogate, surrogate
from ddn_lightning.distill.label_distiller import soft_cross_entropy

ALPHA, LR, CLASSES = 0.7, 0.1, 5
Modes = Callable[[FrozenNetwork, Samples, Callable[[Tensor], Tensor], list[Samples], float], hypergradient.LookAhead]


def perceptron(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, CLASSES)).to(dtype)


def resnet(dtype: torch.dtype) -> nn.Module:
    backbone = ResNet18(width=4)
    return nn.Sequential(backbone, nn.Linear(backbone.feature_dim, CLASSES)).to(dtype).train()


def transformer(dtype: torch.dtype) -> nn.Module:
    tiny = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **tiny).to(dtype).train()


def batch(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Samples:
    return Samples(torch.randn(size, *shape, dtype=dtype), torch.randint(CLASSES, (size,)))


def problem(
    make: Callable[[torch.dtype], nn.Module], dtype: torch.dtype
) -> tuple[nn.Module, Samples, list[Samples], Tensor]:
    shape = (3, 2, 2) if make is perceptron else (3, 8, 8)
    logits = torch.randn(6, CLASSES, dtype=dtype).requires_grad_()  # of the soft labels
    return make(dtype), batch(6, shape, dtype), [batch(4, shape, dtype), batch(7, shape, dtype)], logits


def inner_loss(logits: Tensor, samples: Samples, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, samples.labels) + ALPHA * soft_cross_entropy(logits, samples, labels)


def unrolled(net: nn.Module, inner: Samples, outer: list[Samples], labels: Tensor, lr: float = LR) -> Tensor:
    """The outer loss after a differentiable step, with a second-order graph."""

    @sdpa_kernel(SDPBackend.MATH)
    def forward(parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(net, {**parameters, **{n: b.clone() for n, b in net.named_buffers()}}, (images,))

    parameters = {name: p.detach().requires_grad_() for name, p in net.named_parameters() if p.requires_grad}
    loss = inner_loss(forward(parameters, inner.images), inner, labels)
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    moved = {name: p - lr * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
    return torch.stack([functional.cross_entropy(forward(moved, o.images), o.labels) for o in outer]).sum()


def by_mode(mode: Modes, net: nn.Module, inner: Samples, outer: list[Samples], logits: Tensor) -> Tensor:
    labels = logits.softmax(1)
    look_ahead = mode(FrozenNetwork(net), inner, lambda z: inner_loss(z, inner, labels.detach()), outer, LR)
    value = surrogate(look_ahead, lambda z: inner_loss(z, inner, labels), LR)
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("make", [perceptron, resnet, transformer])
def test_exact_equals_double_backward(
    make: Callable[[torch.dtype], nn.Module], dtype: torch.dtype, tolerance: float
) -> None:
    net, inner, outer, logits = problem(make, dtype)
    expected = torch.autograd.grad(unrolled(net, inner, outer, logits.softmax(1)), logits)[0]
    found = by_mode(hypergradient.exact, net, inner, outer, logits)
    assert expected.norm() > 0
    assert (found - expected).norm() / expected.norm() < tolerance


def test_exact_equals_finite_differences() -> None:
    net, inner, outer, logits = problem(perceptron, torch.float64)
    found = by_mode(hypergradient.exact, net, inner, outer, logits)
    for row, column in [(0, 0), (3, 2), (5, 4)]:
        shift = torch.zeros_like(logits)
        shift[row, column] = 1e-5
        ends = [unrolled(net, inner, outer, (logits + sign * shift).softmax(1)) for sign in (1, -1)]
        assert found[row, column].item() == pytest.approx(((ends[0] - ends[1]) / 2e-5).item(), rel=1e-5, abs=1e-11)


def test_the_outer_loss_and_gradients_of_the_virtual_step_are_reported() -> None:
    net, inner, outer, logits = problem(perceptron, torch.float64)
    labels = logits.softmax(1).detach()
    taken = hypergradient.exact(
        FrozenNetwork(net), inner, lambda z: inner_loss(z, inner, labels), outer, LR
    ).virtual_step
    assert taken is not None
    assert taken.outer_loss.item() == pytest.approx(unrolled(net, inner, outer, labels).item())
    assert -1 <= taken.cosine <= 1


def test_head_equals_exact_on_a_frozen_backbone_and_its_closed_form() -> None:
    """The closed form: dL/dy_i = lr alpha / (n m) sum_j (h_i h_j + 1) (softmax(W' h_j) - y_j), up to a row constant."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh()).double()
    last = nn.Linear(16, CLASSES).double()
    _, inner, outer, logits = problem(perceptron, torch.float64)
    labels = logits.softmax(1).detach().requires_grad_()

    def gradient(look_ahead: hypergradient.LookAhead) -> Tensor:
        return torch.autograd.grad(surrogate(look_ahead, lambda z: inner_loss(z, inner, labels), LR), labels)[0]

    def loss(z: Tensor) -> Tensor:
        return inner_loss(z, inner, labels.detach())

    by_head = hypergradient.head(FrozenNetwork(backbone), FrozenNetwork(last), inner, loss, outer, LR)
    found = gradient(by_head)
    frozen = nn.Sequential(backbone.requires_grad_(False), last)
    assert torch.allclose(
        found, gradient(hypergradient.exact(FrozenNetwork(frozen), inner, loss, outer, LR)), atol=1e-14
    )

    features = backbone(inner.images)
    step = torch.autograd.grad(loss(last(features)), [last.weight, last.bias])
    weight, bias = (p.detach() - LR * g for p, g in zip((last.weight, last.bias), step, strict=True))
    closed = torch.zeros_like(labels)
    for part in outer:
        h = backbone(part.images)
        error = (h @ weight.T + bias).softmax(1) - functional.one_hot(part.labels, CLASSES)
        closed += LR * ALPHA / (len(inner) * len(part)) * (features @ h.T + 1) @ error
    difference = found - closed
    assert torch.allclose(difference, difference.mean(1, keepdim=True).expand_as(difference), atol=1e-12)
    assert not torch.allclose(found, torch.zeros_like(found))


@pytest.mark.parametrize("make", [resnet, transformer])
def test_matching_is_the_gradient_of_minus_the_inner_product(make: Callable[[torch.dtype], nn.Module]) -> None:
    """Theorem 2: -lr <grad L_in(labels), grad L_out>, differentiated by autograd."""
    net, inner, outer, logits = problem(make, torch.float64)
    parameters = list(net.parameters())
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with sdpa_kernel(SDPBackend.MATH):
        loss = inner_loss(net(inner.images), inner, logits.softmax(1))
    inside = torch.autograd.grad(loss, parameters, create_graph=True)
    outside = torch.autograd.grad(
        torch.stack([functional.cross_entropy(net(o.images), o.labels) for o in outer]).sum(), parameters
    )
    product = torch.stack([(a * b).sum() for a, b in zip(inside, outside, strict=True)]).sum()
    expected = torch.autograd.grad(-LR * product, logits)[0]
    net.load_state_dict(buffers, strict=False)
    found = by_mode(hypergradient.matching, net, inner, outer, logits)
    assert (found - expected).norm() / expected.norm() < 1e-10


@pytest.mark.parametrize("make", [perceptron, resnet, transformer])
def test_step_is_exact_for_a_small_step_on_the_outer_loss(make: Callable[[torch.dtype], nn.Module]) -> None:
    """If the classifier's step was on the outer loss, it approximates the outer gradient."""
    net, inner, outer, logits = problem(make, torch.float64)
    network = FrozenNetwork(net)
    small = 1e-9
    losses = [functional.cross_entropy(net(part.images), part.labels) for part in outer]
    gradients = dict(
        zip(network.parameters, torch.autograd.grad(torch.stack(losses).sum(), list(net.parameters())), strict=True)
    )
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter -= small * gradients[name]
    labels = logits.softmax(1)
    look_ahead = hypergradient.step(FrozenNetwork(net), inner, gradients, small)
    found = torch.autograd.grad(surrogate(look_ahead, lambda z: inner_loss(z, inner, labels), LR), logits)[0]
    expected = by_mode(hypergradient.matching, net, inner, outer, logits)
    assert (found - expected).norm() / expected.norm() < 1e-3
    exact = by_mode(hypergradient.exact, net, inner, outer, logits)
    assert functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0) > 0


@pytest.mark.parametrize("make", [perceptron, resnet, transformer])
def test_pixels_by_the_general_rule_equal_double_backward(make: Callable[[torch.dtype], nn.Module]) -> None:
    net, inner, outer, logits = problem(make, torch.float64)
    labels = logits.softmax(1).detach()
    inner = replace(inner, images=inner.images.requires_grad_())
    expected = torch.autograd.grad(unrolled(net, inner, outer, labels), inner.images)[0]
    value = pixel_surrogate(FrozenNetwork(net), inner, lambda z: inner_loss(z, inner, labels), outer, LR)
    found = torch.autograd.grad(value, inner.images)[0]
    assert (found - expected).norm() / expected.norm() < 1e-10


@pytest.mark.parametrize("mode", [hypergradient.exact, hypergradient.matching])
def test_nothing_in_the_network_changes(mode: Modes) -> None:
    net, inner, outer, logits = problem(resnet, torch.float32)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    by_mode(mode, net, inner, outer, logits)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
