from typing import Any

import pytest
import torch
from bit_for_bit import difference
from tiny import Fit, TinySequence, random_samples, small_net
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from ddn_lightning import ER, ERACE, BiasAdaptor, ConfigurationError, DERPlusPlus, Learner, ReplayMethod, Samples


def unrolled(adaptor: BiasAdaptor, method: Learner, inner: Samples, outer: Samples, stepped: str) -> Tensor:
    """The plain loss after a differentiable step on the adapted one, of the parameters that begin with ``stepped``."""
    network = method.network
    before = {name: p.detach().requires_grad_() for name, p in network.named_parameters()}
    logits = functional_call(network, before, (inner.images,))
    correction = adaptor.alpha * adaptor.adaptor(logits.detach().softmax(dim=1))
    new, old = (inner.labels[part] for part in (slice(5), slice(5, None)))  # five incoming, five from memory
    losses = functional.cross_entropy((logits + correction)[:5], new)
    losses = losses + functional.cross_entropy((logits + correction)[5:], old)
    moved = {name: p for name, p in before.items() if name.startswith(stepped)}
    gradients = torch.autograd.grad(losses, list(moved.values()), create_graph=True)
    after = {name: p - method.current_lr * g for (name, p), g in zip(moved.items(), gradients, strict=True)}
    return functional.cross_entropy(functional_call(network, {**before, **after}, (outer.images,)), outer.labels)


def test_the_adaptor_descends_the_loss_of_memory_after_a_step_of_the_head_on_the_adapted_loss(fit: Fit) -> None:
    steps = []

    class Watch(BiasAdaptor):
        def surrogate_of(self, method: Learner, inner: Samples, outer: list[Samples]) -> Tensor:
            value = super().surrogate_of(method, inner, outer)
            parameters = list(self.adaptor.parameters())
            found = torch.autograd.grad(value, parameters, retain_graph=True)
            expected = torch.autograd.grad(unrolled(self, method, inner, outer[0], "head"), parameters)
            for first, second in zip(found, expected, strict=True):
                assert second.abs().max() > 0
                torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-9)
            steps.append(method.task)
            return value

    data = TinySequence(batch_size=5, drop_last=True)
    sizes = {"num_classes": 6, "buffer_size": 20, "replay_batch_size": 5}
    fit(lambda: ER(small_net(), distiller=Watch(), **sizes), data, precision="64-true")
    assert steps == [1] * 4 + [2] * 4


def in_second_task(method: ReplayMethod) -> ReplayMethod:
    """With an adaptor that prefers class 2."""
    method.progress.begin(1)
    assert isinstance(method.distiller, BiasAdaptor)
    with torch.no_grad():
        method.distiller.adaptor[-1].bias[2] = 3.0
    return method


def augmented(size: int) -> Samples:
    return Samples(torch.randn(size, 1, 8, 8), random_samples(size).labels, logits=torch.randn(size, 6))


@pytest.mark.parametrize("batches", ["separate", "concatenated"])
def test_a_methods_loss_sees_adapted_logits_and_its_predictions_do_not(batches: Any) -> None:
    method = in_second_task(ER(small_net(), num_classes=6, distiller=BiasAdaptor(alpha=0.5), batches=batches))
    current, memory = augmented(4), augmented(4)
    loss = method.loss(current, memory)
    expected = []
    for part in (current, memory):
        logits = method(part.images)
        correction = method.distiller.adaptor(logits.softmax(dim=1)).detach()
        expected.append(functional.cross_entropy(logits + 0.5 * correction, part.labels))
    scale = 1 if batches == "separate" else 0.5
    assert torch.allclose(loss.total, scale * (expected[0] + expected[1]), atol=1e-6)
    for found, reference in zip(
        torch.autograd.grad(loss.total, list(method.network.parameters()), retain_graph=True),
        torch.autograd.grad(scale * (expected[0] + expected[1]), list(method.network.parameters())),
        strict=True,
    ):
        assert torch.allclose(found, reference, atol=1e-6)
    assert torch.equal(method.class_scores(current.images), method(current.images))
    method.progress.begin(0)
    assert torch.allclose(method.logits_of(current), method(current.images))


@pytest.mark.parametrize("host", [DERPlusPlus, ERACE])
def test_all_terms_of_other_methods_see_adapted_logits(host: type[ReplayMethod]) -> None:
    method = in_second_task(host(small_net(), num_classes=6, distiller=BiasAdaptor()))
    method.is_met_class = torch.zeros(6, dtype=torch.bool)  # of ER-ACE: nothing is masked
    parts = [augmented(4), *(augmented(5) for _ in range(host.memory_draws))]
    new, *memory = (method(part.images) for part in parts)
    new, *memory = (z + method.distiller.adaptor(z.softmax(dim=1)).detach() for z in (new, *memory))
    expected = functional.cross_entropy(new, parts[0].labels)
    if host is DERPlusPlus:
        expected = expected + 0.2 * functional.mse_loss(memory[0], parts[1].logits)
        expected = expected + 0.5 * functional.cross_entropy(memory[1], parts[2].labels)
    else:
        expected = expected + functional.cross_entropy(memory[0], parts[1].labels)
    assert torch.allclose(method.loss(*parts).total, expected, atol=1e-6)


def test_without_weight_or_before_its_first_task_it_is_the_method_alone(fit: Fit) -> None:
    plain = fit(lambda: ER(small_net(), num_classes=6))
    for adaptor in (BiasAdaptor(alpha=0), BiasAdaptor(apply_from_task=4)):
        adapted = fit(lambda: ER(small_net(), num_classes=6, distiller=adaptor))  # noqa: B023
        assert difference(dict(adapted.network.state_dict()), dict(plain.network.state_dict())) is None


def test_an_adaptor_without_units_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hidden_dim must be positive, got 0"):
        BiasAdaptor(hidden_dim=0)
