"""STAR's term against a plain implementation that changes the weights of copies."""

import copy

import pytest
import torch
from every_method import build
from tiny import BatchNormNet, Fit, TinySequence
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import ER, STAR, ReplayMethod, Samples
from ddn_lightning.distill.hypergradient import FrozenNetwork


def divergence(network: nn.Module, now: Tensor, samples: Samples) -> Tensor:
    is_right = now.argmax(dim=1) == samples.labels
    changed = functional.kl_div(network(samples.images).log_softmax(dim=1), now.softmax(dim=1), reduction="none")
    return changed.sum(dim=1)[is_right].mean()


class Watch(STAR):
    compared = 0

    def divergence(self, method: ReplayMethod, samples: Samples) -> Tensor:
        with torch.no_grad():
            now = copy.deepcopy(method.network)(samples.images)
        if not (now.argmax(dim=1) == samples.labels).any():
            return super().divergence(method, samples)
        state = self.streams["distiller"].get_state()
        plain = self.plain(method, samples, now)
        loss = divergence(plain, now, samples)
        expected = torch.autograd.grad(loss, list(plain.parameters()), retain_graph=True)
        self.streams["distiller"].set_state(state)
        found = super().divergence(method, samples)
        torch.testing.assert_close(found, loss, rtol=1e-3, atol=1e-6)
        gradients = torch.autograd.grad(found, list(method.network.parameters()), retain_graph=True)
        for gradient, other in zip(gradients, expected, strict=True):
            assert (gradient - other).norm() <= 1e-2 * other.norm() + 1e-5
        type(self).compared += 1
        return found

    def plain(self, method: ReplayMethod, samples: Samples, now: Tensor) -> nn.Module:
        """The perturbed network, by in-place changes of a copy."""
        proxy, moved = copy.deepcopy(method.network), copy.deepcopy(method.network)
        with torch.no_grad():
            for weight in proxy.parameters():
                if weight.dim() > 1:
                    noise = torch.randn(weight.shape, generator=self.streams["distiller"])
                    weight += self.noise * weight.norm() * noise / noise.norm()
        gradients = torch.autograd.grad(divergence(proxy, now, samples), list(proxy.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(moved.parameters(), gradients, strict=True):
                if weight.dim() > 1:
                    weight += self.gamma * weight.norm() * gradient / gradient.norm()
        return moved


def test_term_and_gradient_are_those_of_a_network_with_changed_weights(fit: Fit) -> None:
    Watch.compared = 0
    fit(lambda: build(ER, lambda: Watch(gamma=0.1), BatchNormNet(), lr=0.1), TinySequence(batch_size=6))
    assert Watch.compared > 5


def test_the_direction_is_much_worse_than_a_random_one(fit: Fit) -> None:
    method = fit(lambda: build(ER, STAR, BatchNormNet(), lr=0.1), TinySequence(batch_size=6, epochs_per_task=3))
    samples = method.augment(method.memory[method.memory.slots])
    network = FrozenNetwork(method.network)
    with torch.no_grad():
        now = network(network.parameters, samples.images).log_softmax(dim=1)
        weights = torch.full((len(samples),), 1 / len(samples))

        def change(offsets: dict[str, Tensor]) -> float:
            moved = {name: p + offsets[name] if name in offsets else p for name, p in network.parameters.items()}
            logits = network(moved, samples.images)
            return (weights * (now.exp() * (now - logits.log_softmax(dim=1))).sum(dim=1)).sum().item()

        worst = change(method.distiller.perturbation(network, samples, now, weights))
        random = []
        for _ in range(10):
            noise = {name: torch.randn_like(p) for name, p in network.parameters.items() if p.dim() > 1}
            random.append(change({n: 0.01 * network.parameters[n].norm() * z / z.norm() for n, z in noise.items()}))
    assert worst > 5 * sum(random) / len(random)


@pytest.mark.parametrize("moves", [True, False])
def test_its_passes_move_the_statistics_only_where_the_method_says_so(fit: Fit, moves: bool) -> None:
    def batches(distiller: type[STAR] | None) -> int:
        method = fit(lambda: build(ER, distiller, BatchNormNet(), extra_draw_moves_statistics=moves))
        return int(method.backbone.layers[1].num_batches_tracked)

    alone = batches(None)  # two in each step but the first, which has no memory yet
    assert batches(STAR) - alone == (alone - 1 if moves else 0)


def test_a_weight_of_zero_is_the_method_alone(fit: Fit) -> None:
    alone, off = fit(lambda: build(ER)), fit(lambda: build(ER, lambda: STAR(alpha=0.0)))
    assert torch.equal(alone.head.weight, off.head.weight)
