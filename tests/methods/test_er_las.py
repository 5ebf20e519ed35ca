import numpy
import pytest
import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import Tensor

from ddn_lightning import ER, ERLAS, ReplayLoss, Samples


def augmented(labels: list[int]) -> Samples:
    return Samples(torch.randn(len(labels), 1, 8, 8), torch.tensor(labels))


def loss_by_loops(logits: Tensor, labels: Tensor, counts: list[int], tau: float) -> float:
    """The paper's softmax, written with the frequencies as weights: n_c^tau exp(z_c) / sum over classes that came."""
    values = []
    for row, label in zip(logits.detach().double().numpy(), labels.tolist(), strict=True):
        weighted = [count**tau * numpy.exp(z) if count else 0.0 for z, count in zip(row, counts, strict=True)]
        values.append(-numpy.log(weighted[label] / sum(weighted)))
    return float(numpy.mean(values))


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_the_loss_is_a_softmax_weighted_by_frequencies(tau: float) -> None:
    method = ERLAS(small_net(), num_classes=6, tau=tau)
    current, memory = augmented([3, 3, 5]), augmented([0, 3, 2, 0])
    loss = method.loss(current, memory)
    counts = [2, 0, 1, 3, 0, 1]
    logits, replayed = method(current.images), method(memory.images)
    assert loss.other.item() == pytest.approx(loss_by_loops(logits, current.labels, counts, tau), rel=1e-5)
    assert loss.rehearsal is not None
    assert loss.rehearsal.item() == pytest.approx(loss_by_loops(replayed, memory.labels, counts, tau), rel=1e-5)
    assert torch.equal(loss.current_logits, logits)
    gradient = torch.autograd.grad(loss.total, method.head.weight)[0].abs().sum(dim=1)
    assert (gradient > 0).tolist() == [count > 0 for count in counts]


def test_the_window_counts_the_last_steps() -> None:
    method = ERLAS(small_net(), num_classes=6, window=2)
    for labels in ([0, 1], [1, 2], [2, 2]):
        loss = method.current_loss(current := augmented(labels))
    expected = loss_by_loops(method(current.images), current.labels, [0, 1, 3, 0, 0, 0], 1.0)
    assert loss.other.item() == pytest.approx(expected, rel=1e-5)


def test_without_adjustment_it_is_er(fit: Fit) -> None:
    runs = [fit(lambda kind=kind, more=more: build(kind, **more)) for kind, more in ((ER, {}), (ERLAS, {"tau": 0.0}))]
    assert torch.equal(runs[0].head.weight, runs[1].head.weight)


def test_samples_of_classes_without_a_count_keep_a_finite_loss(fit: Fit) -> None:
    seen: list[Tensor] = []

    class Watch(ERLAS):
        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            loss = super().loss(current, *memory)
            seen.append(loss.total.detach())
            return loss

    method = fit(lambda: build(Watch, old_memory_weight=1.0), TinySequence(batch_size=6))
    assert torch.stack(seen).isfinite().all()
    assert torch.stack(seen).max() < 20
    assert all(parameter.isfinite().all() for parameter in method.parameters())
