from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from tiny import DropoutNet, Fit, random_samples, small_net
from torch import Tensor
from torch.nn import functional

from ddn_lightning import CLSER, ConfigurationError, Samples


def augmented(size: int) -> Samples:
    return Samples(torch.randn(size, 1, 8, 8), random_samples(size).labels)


def test_logits_are_kept_close_to_the_more_confident_average() -> None:
    method = CLSER(small_net(), num_classes=6, consistency_weight=0.3)
    with torch.no_grad():
        for average in method.averages.values():
            for parameter in average.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    current, memory = augmented(5), augmented(8)
    loss = method.loss(current, memory)
    plastic, stable = (method.averages[name](memory.images) for name in ("plastic", "stable"))
    targets, chosen = [], []
    for z_plastic, z_stable, label in zip(plastic, stable, memory.labels, strict=True):
        is_stable = z_stable.softmax(0)[label] > z_plastic.softmax(0)[label]
        chosen.append(bool(is_stable))
        targets.append(z_stable if is_stable else z_plastic)
    assert len(set(chosen)) == 2
    distance = functional.mse_loss(method(memory.images), torch.stack(targets))
    expected = functional.cross_entropy(method(current.images), current.labels) + 0.3 * distance
    assert torch.allclose(loss.other, expected)
    assert torch.allclose(loss.rehearsal, functional.cross_entropy(method(memory.images), memory.labels))


class Averages(Callback):
    """Computes the average of the weights after each step."""

    def __init__(self, decay: float) -> None:
        self.decay, self.expected = decay, list[Tensor]()

    def on_train_start(self, trainer: Trainer, method: Any) -> None:
        self.expected = [p.clone() for p in method.network.parameters()]

    def on_train_batch_end(self, trainer: Trainer, method: Any, *_: Any) -> None:
        decay = min(1 - 1 / (trainer.global_step + 1), self.decay)
        pairs = zip(self.expected, method.network.parameters(), strict=True)
        self.expected = [decay * old + (1 - decay) * new.detach() for old, new in pairs]


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_averages_of_parameters_against_a_hand_computation(fit: Fit, decay: float) -> None:
    by_hand = Averages(decay)
    rates = {"plastic_rate": 1.0, "stable_rate": 0.0}
    method = fit(lambda: CLSER(DropoutNet(), num_classes=6, ema_decay=decay, **rates), callbacks=[by_hand])
    assert isinstance(method, CLSER)
    for found, expected in zip(method.averages["plastic"].parameters(), by_hand.expected, strict=True):
        assert torch.allclose(found, expected, atol=1e-6)
        assert not found.requires_grad
    if decay == 0:
        pairs = zip(method.averages["plastic"].parameters(), method.network.parameters(), strict=True)
        assert all(torch.allclose(average, working) for average, working in pairs)
    seed_everything(0, verbose=False)
    untouched = CLSER(DropoutNet(), num_classes=6)
    for found, expected in zip(method.averages["stable"].parameters(), untouched.network.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_each_average_has_its_own_probability(fit: Fit) -> None:
    moved = {"plastic": 0, "stable": 0}

    class Watch(CLSER):
        def after_step(self) -> None:
            before = {name: net.head.weight.clone() for name, net in self.averages.items()}
            super().after_step()
            for name, net in self.averages.items():
                moved[name] += not torch.equal(before[name], net.head.weight)

    fit(lambda: Watch(small_net(), num_classes=6, plastic_rate=0.9, stable_rate=0.2))
    assert moved["stable"] < moved["plastic"] <= 12


def test_any_of_the_networks_can_predict() -> None:
    images = torch.randn(3, 1, 8, 8)
    for name in ("working", "stable", "plastic"):
        method = CLSER(small_net(), num_classes=6, evaluate=name)
        with torch.no_grad():
            (method.network if name == "working" else method.averages[name]).head.bias[4] = 100.0
        assert method.class_scores(images).argmax(1).tolist() == [4, 4, 4]
    with pytest.raises(ConfigurationError, match="stable_rate must be between 0 and 1, got 2"):
        CLSER(small_net(), num_classes=6, stable_rate=2.0)
