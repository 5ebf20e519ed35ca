"""Under bf16-mixed the network computes in half precision, the losses do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_method import METHODS, SlowEnding, build
from tiny import Fit, random_samples, small_net
from torch import Tensor, nn

from ddn_lightning import CLSER, ER, LUCIR, MKD, NCM, ConfigurationError, DataDistillNet, ImageTransform, Samples
from ddn_lightning.distill.label_distiller import soft_cross_entropy
from ddn_lightning.methods.lode import decoupled_losses
from ddn_lightning.methods.mkd import distillation_losses
from ddn_lightning.methods.pcr import proxy_losses
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.methods.scr import contrastive_loss
from ddn_lightning.networks.gradients import gradient_of_sum
from study.other_readings import NoExtraPass

LABELS = torch.tensor([0, 2, 1, 0])
TRANSFORM = ImageTransform((0.5,), (0.25,))


def mixed() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def test_logits_are_rounded_by_the_network_only() -> None:
    method = ER(small_net(), num_classes=6, transform=TRANSFORM)
    samples = method.augment(random_samples(5))
    exact = method.logits_of(samples)
    with mixed():
        given = [method.logits_of(samples), method.network(samples.images)]
        assert method.head(method.backbone(samples.images)).dtype == torch.bfloat16
    for logits in given:
        assert logits.dtype == torch.float32
        assert torch.allclose(logits, exact, atol=0.1)
        assert not torch.equal(logits, exact)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z: decoupled_losses(z, LABELS, torch.tensor([True, False, False]), torch.tensor(0.3)),
        lambda z: proxy_losses(z, LABELS, torch.tensor([2, 1, 1])),
        lambda z: distillation_losses(z, z.detach() + 0.01, temperature=4.0),
        lambda z: contrastive_loss(torch.nn.functional.normalize(z), torch.tensor([0, 1, 1, 0]), 0.1),
        lambda z: soft_cross_entropy(z, Samples(torch.zeros(4, 1, 8, 8), LABELS), torch.full((4, 3), 1 / 3)),
    ],
    ids=["LODE", "PCR", "MKD", "SCR", "DDN"],
)
def test_a_loss_and_its_gradient_are_the_same_with_and_without(loss: Callable[[Tensor], Tensor]) -> None:
    logits = (5 * torch.randn(4, 3)).requires_grad_()

    value, (gradient,) = gradient_of_sum([lambda: loss(logits).sum()], [logits])
    with mixed():
        in_mixed, (gradient_in_mixed,) = gradient_of_sum([lambda: loss(logits).sum()], [logits])
    assert torch.equal(in_mixed, value)
    assert torch.equal(gradient_in_mixed, gradient)


def test_the_cosines_of_lucir_are_rounded_by_the_network_only() -> None:
    method = LUCIR(small_net(), num_classes=6, transform=TRANSFORM)
    method.is_seen_class[:] = True
    with mixed():
        loss = method.current_loss(method.augment(random_samples(5)))
    assert (loss.current_logits.dtype, loss.other.dtype) == (torch.float32, torch.float32)


def test_labels_without_an_extra_pass_train(fit: Fit) -> None:
    assert fit(lambda: build(ER, NoExtraPass), precision="bf16-mixed").tasks_finished == 3


@pytest.mark.parametrize("method_class", [MKD, CLSER])
def test_networks_beside_the_first_give_full_logits_too(method_class: Any) -> None:
    method = method_class(small_net(), num_classes=6, transform=TRANSFORM)
    others = [method.teacher] if method_class is MKD else list(method.averages.values())
    with mixed():
        assert {other(method.augment(random_samples(3)).images).dtype for other in others} == {torch.float32}


@pytest.mark.parametrize("method_class", [MKD, CLSER])
def test_moving_averages_are_refused_where_they_would_stand_still(fit: Fit, method_class: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"with {method_class.__name__}, whose moving averages .*bf16-true"):
        fit(lambda: build(method_class), precision="bf16-true")


def test_soft_labels_have_full_precision() -> None:
    method = ER(small_net(), num_classes=6, distiller=DataDistillNet(), transform=TRANSFORM)
    samples = random_samples(4)
    with mixed():
        labels = method.distiller.soft_labels(samples, torch.full((4, 6), 1 / 6))
    assert labels.dtype == torch.float32
    assert torch.allclose(labels.sum(dim=1), torch.ones(4), atol=1e-6)


@pytest.mark.parametrize("method_class", METHODS)
def test_every_method_trains_in_half_precision_with_weights_in_single(fit: Fit, method_class: Any) -> None:
    in_half = []

    def note(backbone: nn.Module, _: object) -> None:
        if backbone.training and torch.is_grad_enabled():  # not where something is only measured
            in_half.append(torch.is_autocast_enabled("cpu"))

    def make() -> Any:
        method = build(method_class)
        method.backbone.register_forward_pre_hook(note)
        return method

    method = fit(make, precision="bf16-mixed")
    assert method.tasks_finished == 3
    assert in_half or issubclass(method_class, NCM)  # which only measures
    if not issubclass(method_class, (PixelDistillation, SlowEnding)):  # virtual steps are in single; a test's own
        assert all(in_half)
    assert all(parameter.dtype == torch.float32 for parameter in method.parameters())
