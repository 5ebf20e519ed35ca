"""The gradient of labels and pixels against an independent reference: double backward, finite differences."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from ddn_lightning import ResNet18, Samples
from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.hypergradient import FrozenNetwork, pixel_surrogate, surrogate
from ddn_lightning.distill.label_distiller import soft_cross_entropy

ALPHA, LR, CLASSES = 0.7, 0.1, 5


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


def gradient_of_labels(net: nn.Module, inner: Samples, outer: list[Samples], logits: Tensor) -> Tensor:
    labels = logits.softmax(1)
    look_ahead = hypergradient.exact(
        FrozenNetwork(net), inner, lambda z: inner_loss(z, inner, labels.detach()), outer, LR
    )
    value = surrogate(look_ahead, lambda z: inner_loss(z, inner, labels), LR)
    return torch.autograd.grad(value, logits)[0]


SINGLE = [(perceptron, torch.float32, 2e-3), (transformer, torch.float32, 2e-3)]  # an untrained ResNet bends too much
DOUBLE = [(make, torch.float64, 1e-6) for make in (perceptron, resnet, transformer)]


@pytest.mark.parametrize(("make", "dtype", "tolerance"), SINGLE + DOUBLE)
def test_exact_equals_double_backward(
    make: Callable[[torch.dtype], nn.Module], dtype: torch.dtype, tolerance: float
) -> None:
    net, inner, outer, logits = problem(make, dtype)
    expected = torch.autograd.grad(unrolled(net, inner, outer, logits.softmax(1)), logits)[0]
    found = gradient_of_labels(net, inner, outer, logits)
    assert expected.norm() > 0
    assert (found - expected).norm() / expected.norm() < tolerance


def test_exact_equals_finite_differences() -> None:
    net, inner, outer, logits = problem(perceptron, torch.float64)
    found = gradient_of_labels(net, inner, outer, logits)
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


@pytest.mark.parametrize("make", [perceptron, resnet, transformer])
def test_pixels_by_the_general_rule_equal_double_backward(make: Callable[[torch.dtype], nn.Module]) -> None:
    net, inner, outer, logits = problem(make, torch.float64)
    labels = logits.softmax(1).detach()
    inner = replace(inner, images=inner.images.requires_grad_())
    expected = torch.autograd.grad(unrolled(net, inner, outer, labels), inner.images)[0]
    value = pixel_surrogate(FrozenNetwork(net), inner, lambda z: inner_loss(z, inner, labels), outer, LR)
    found = torch.autograd.grad(value, inner.images)[0]
    assert (found - expected).norm() / expected.norm() < 1e-10


def test_nothing_in_the_network_changes() -> None:
    net, inner, outer, logits = problem(resnet, torch.float32)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradient_of_labels(net, inner, outer, logits)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


class Rounding(nn.Module):
    """Rounds as the inputs of a TF32 product are, unless that is switched off: to 10 bits after the first."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.backends.cudnn.conv.fp32_precision == "ieee":  # type: ignore[attr-defined]  # torch does not declare it
            return x
        bits = (x.detach().view(torch.int32) + 2**12) & ~(2**13 - 1)
        return x + (bits.view(torch.float32) - x).detach()


class TensorCore(nn.Module):
    """A layer whose inputs and weights are rounded."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.layer, self.rounding = layer, Rounding()
        parametrize.register_parametrization(layer, "weight", Rounding(), unsafe=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(self.rounding(x))
        return output


def test_the_difference_is_taken_without_tf32() -> None:
    """Emulated as cuDNN does it by default: neither forward pass of the inner batch is rounded."""
    torch.manual_seed(0)
    net, inner, outer, logits = problem(perceptron, torch.float32)
    expected = torch.autograd.grad(unrolled(net, inner, outer, logits.softmax(1)), logits)[0]
    for index in (1, 3):
        net[index] = TensorCore(net[index])
    precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    assert precision == "tf32"
    found = gradient_of_labels(net, inner, outer, logits)
    assert torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.9999
    assert torch.backends.cudnn.conv.fp32_precision == precision  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:  # with TF32 the difference is noise
        patch.setattr(hypergradient, "full_float32", nullcontext)
        rounded = gradient_of_labels(net, inner, outer, logits)
    assert torch.cosine_similarity(rounded.flatten(), expected.flatten(), dim=0) < 0.9


@pytest.mark.parametrize("make", [perceptron, transformer])
def test_where_autocast_computes_the_tangent_is_taken_by_dual_numbers(make: Callable[[torch.dtype], nn.Module]) -> None:
    torch.manual_seed(0)
    net, inner, outer, logits = problem(make, torch.float32)
    labels, network = logits.softmax(1), FrozenNetwork(net)
    expected = torch.autograd.grad(unrolled(net, inner, outer, labels), logits, retain_graph=True)[0]
    taken = hypergradient.virtual_step(network, inner, lambda z: inner_loss(z, inner, labels.detach()), outer, LR)

    def cosine() -> float:
        state = hypergradient.random_state(inner.images.device)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            known = hypergradient.ForwardPass(network(network.parameters, inner.images), state)
            along = hypergradient.tangent(network, network.parameters, inner.images, taken.outer_gradient, known)
        assert known.logits.dtype == torch.bfloat16
        look_ahead = hypergradient.LookAhead(known.logits.float(), along.float())
        value = surrogate(look_ahead, lambda z: inner_loss(z, inner, labels), LR)
        (found,) = torch.autograd.grad(value, logits, retain_graph=True)
        return torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0).item()

    assert cosine() >= 0.999
    with pytest.MonkeyPatch.context() as patch:  # a difference is below the rounding
        patch.setattr("torch.is_autocast_enabled", lambda *_: False)
        assert cosine() < 0.9
