"""Normalisations of other authors, against their formulas."""

import math

import pytest
import torch
from tiny import BatchNormNet, Fit, TinySequence
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from ddn_lightning import ER, Forgetting, ReplayMethod, Samples
from study.adab2n import AdaptiveBatchNorm2d, AdaptiveER, AdaptiveResNet18, OneForward
from study.normalization import ContinualNorm2d, ContinualResNet18, GroupResNet18, replace_batch_norm


def features(size: int = 6, channels: int = 4) -> Tensor:
    return torch.randn(size, channels, 3, 5, dtype=torch.float64) * 2 + 1


def by_hand(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()


def test_continual_normalization_is_batch_norm_of_group_norm() -> None:
    layer, x = ContinualNorm2d(4, groups=2).double(), features()
    with torch.no_grad():
        layer.weight.copy_(torch.rand(4))
        layer.bias.copy_(torch.rand(4))
    grouped = torch.stack(
        [torch.cat([(g - g.mean()) / (g.var(correction=0) + 1e-5).sqrt() for g in i.split(2)]) for i in x]
    )
    mean, variance = grouped.mean((0, 2, 3)), grouped.var((0, 2, 3), correction=0)
    expected = layer.weight[:, None, None] * by_hand(grouped, mean, variance) + layer.bias[:, None, None]
    assert torch.allclose(layer(x), expected)
    assert torch.allclose(layer.running_mean, 0.1 * mean)
    layer.eval()
    running = by_hand(grouped, layer.running_mean, layer.running_var)
    assert torch.allclose(layer(x), layer.weight[:, None, None] * running + layer.bias[:, None, None])


@pytest.mark.parametrize(
    ("backbone", "norm"),
    [(ContinualResNet18, ContinualNorm2d), (GroupResNet18, nn.GroupNorm), (AdaptiveResNet18, AdaptiveBatchNorm2d)],
)
def test_a_backbone_has_no_batch_norm_left_and_the_weights_of_a_resnet(
    backbone: type[nn.Module], norm: type[nn.Module]
) -> None:
    net = backbone(width=16)
    norms = [m for m in net.modules() if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
    assert len(norms) == 20
    assert all(type(m) is norm for m in norms)
    assert net(torch.randn(2, 3, 16, 16)).shape == (2, 128)


def test_a_task_has_the_weight_of_its_samples_and_of_its_parameter() -> None:
    layer, x, tasks = (
        AdaptiveBatchNorm2d(4, num_tasks=3, kappa=1.0).double(),
        features(),
        torch.tensor([0, 1, 1, 1, 0, 1]),
    )
    with torch.no_grad():
        layer.task_logits.copy_(torch.tensor([0.5, -1.0, 2.0]))
    layer.tasks = tasks
    shares = [math.exp(0.5) + 2, math.exp(-1) + 4]  # the third task has not come
    mean, variance = torch.zeros(4).double(), torch.zeros(4).double()
    for task, number in ((0, 2), (1, 4)):
        mean += shares[task] / sum(shares) / number * x[tasks == task].mean((2, 3)).sum(0)
    for task, number in ((0, 2), (1, 4)):
        squares = (x[tasks == task] - mean[:, None, None]).square().mean((2, 3)).sum(0)
        variance += shares[task] / sum(shares) / number * squares
    assert torch.allclose(layer(x), by_hand(x, mean, variance))
    assert torch.allclose(layer.running_mean, 0.1 * mean)
    assert torch.allclose(layer.running_var, 0.9 + 0.1 * variance)
    expected = mse_loss(mean, 0.1 * mean) + mse_loss(variance, 0.9 + 0.1 * variance)
    assert torch.allclose(layer.distance, expected)
    (gradient,) = torch.autograd.grad(layer.distance, layer.task_logits)
    assert gradient[0] != 0


def test_without_tasks_it_is_batch_norm() -> None:
    layer, x = AdaptiveBatchNorm2d(4, num_tasks=3, kappa=0.5).double(), features()
    assert torch.allclose(layer(x), nn.BatchNorm2d(4).double()(x))
    statistics = layer.running_mean, layer.running_var
    layer.eval()
    assert torch.allclose(layer(x), by_hand(x, *statistics))


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_the_momentum_follows_its_recurrence(kappa: float) -> None:
    layer = AdaptiveBatchNorm2d(1, num_tasks=1, kappa=kappa)
    expected = 0.1**kappa
    for number in range(1, 30):
        assert layer.momentum_at(torch.tensor(number)).item() == pytest.approx(expected, rel=1e-5)
        expected = expected / (expected + 0.9**kappa)
    assert kappa != 0 or expected == pytest.approx(1 / 30)
    assert kappa != 1 or expected == pytest.approx(0.1)


class AdaptiveNet(BatchNormNet):
    def __init__(self) -> None:
        super().__init__()
        replace_batch_norm(self, lambda channels: AdaptiveBatchNorm2d(channels, num_tasks=3, kappa=0.7))


def test_er_with_adab2n_balances_both_batches_from_the_second_task_on(fit: Fit) -> None:
    seen: list[int] = []

    class Watched(AdaptiveER):
        def loss(self, current: Samples, *memory: Samples):  # type: ignore[no-untyped-def]
            layer = self.backbone.layers[1]
            found = super().loss(current, *memory)
            assert layer.tasks is None
            total = found.total - self.distance_weight * layer.distance
            logits = found.current_logits, found.memory_logits
            losses = [cross_entropy(z, s.labels) for z, s in zip(logits, (current, *memory), strict=True)]
            assert torch.allclose(total, sum(losses))
            seen.append(self.task)
            return found

    method = fit(lambda: Watched(AdaptiveNet(), 6, 20, replay_batch_size=8), TinySequence(batch_size=6))
    assert set(seen) == {0, 1, 2}
    layer = method.backbone.layers[1]
    assert layer.task_logits.abs().min() > 0
    assert int(layer.num_batches_tracked) == 12  # one forward pass a step


def test_calibrated_statistics_are_those_of_the_memory(fit: Fit) -> None:
    method = fit(
        lambda: AdaptiveER(AdaptiveNet(), 6, 20, replay_batch_size=8),
        TinySequence(batch_size=6),
        callbacks=[Forgetting(statistics="both")],
    )
    stored = method.backbone.layers[0](method.transform(method.memory[method.memory.slots].images))
    found = method.calibrated_buffers(64)["backbone.layers.1.running_mean"]
    assert torch.allclose(found, stored.mean((0, 2, 3)), atol=1e-5)


def test_one_forward_pass_normalises_both_batches_together(fit: Fit) -> None:
    def run(kind: type[ER]) -> ReplayMethod:
        return fit(lambda: kind(BatchNormNet(), 6, 20, replay_batch_size=8), TinySequence(batch_size=6))

    tracked = "backbone.layers.1.num_batches_tracked"
    assert [int(run(kind).get_buffer(tracked)) for kind in (ER, OneForward)] == [12 + 11, 12]
