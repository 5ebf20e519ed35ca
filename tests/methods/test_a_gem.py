from collections.abc import Sequence

import torch
from every_method import build
from tiny import Fit, TinySequence, small_net
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning import AGEM, DataDistillNet, ReplayLoss, Samples
from ddn_lightning.methods.a_gem import projected


def flat_gradient(network: nn.Module, samples: Samples) -> Tensor:
    loss = functional.cross_entropy(network(samples.images), samples.labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


def test_each_step_is_the_papers_projection_of_the_new_gradient(fit: Fit) -> None:
    """Gradients are taken anew, by autograd on the whole network; the step is what the weights have moved by."""
    kinds = []

    class Watch(AGEM):
        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            assert memory[0].tasks is not None
            assert (memory[0].tasks < self.task).all()
            new, reference = (flat_gradient(self.network, samples) for samples in (current, memory[0]))
            if new @ reference < 0:
                new = new - (new @ reference) / (reference @ reference) * reference
                assert (new @ reference).abs() < 1e-6
                kinds.append("projected")
            else:
                kinds.append("as it is")
            before = nn.utils.parameters_to_vector(self.network.parameters())
            self.expected = (before - self.lr * new).detach()
            return super().loss(current, *memory)

        def after_step(self) -> None:
            if self.batch_norm.is_replaying:
                torch.testing.assert_close(nn.utils.parameters_to_vector(self.network.parameters()), self.expected)

    fit(lambda: build(Watch, backbone=small_net(), lr=0.1), TinySequence(batch_size=6, epochs_per_task=2))
    assert len(kinds) == 16
    assert set(kinds) == {"projected", "as it is"}


def test_a_distiller_may_soften_the_labels_of_the_reference_batch(fit: Fit) -> None:
    """Its term then shares a graph with the reference gradient."""
    kinds = set()

    class Watch(AGEM):
        def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
            if loss.rehearsal is None:
                return super().gradients(loss, parameters)
            both = [torch.autograd.grad(term, parameters, retain_graph=True) for term in (loss.other, loss.rehearsal)]
            new, reference = (nn.utils.parameters_to_vector(gradients) for gradients in both)
            kinds.add(is_uphill := bool(new @ reference < 0))
            value, found = super().gradients(loss, parameters)
            expected = new - is_uphill * (new @ reference) / (reference @ reference) * reference
            torch.testing.assert_close(nn.utils.parameters_to_vector([g for g in found if g is not None]), expected)
            return value, found

    fit(
        lambda: build(Watch, lambda: DataDistillNet(memory="running", alpha=0.3), lr=0.1),
        TinySequence(batch_size=6, epochs_per_task=2),
    )
    assert kinds == {True, False}


def test_parts_without_a_gradient_stay_as_they_are_and_a_zero_reference_changes_nothing() -> None:
    gradient = torch.tensor([1.0, -2.0])
    found = projected([gradient, None, gradient], [torch.zeros(2), torch.ones(2), None])
    assert torch.equal(found[0], gradient)
    assert found[1] is None
    assert found[2] is gradient
