import numpy
import pytest
import torch
from every_method import build
from scipy.optimize import minimize
from tiny import Fit, TinySequence, small_net
from torch import nn
from torch.nn import functional

from ddn_lightning import GEC, ReplayLoss, Samples
from ddn_lightning.methods.gec import WARM_UP, constrained


@pytest.mark.parametrize("least", [-3.0, -0.5, 0.0, 0.7, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_direction_solves_the_papers_quadratic_program(least: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient, reference = torch.randn(2, 6, dtype=torch.float64, generator=generator)
    (found,) = constrained([gradient], [reference], torch.tensor(least), torch.tensor(True))
    g, r = gradient.numpy(), reference.numpy()
    solved = minimize(
        lambda v: 0.5 * ((v - g) ** 2).sum(),
        numpy.zeros(6),
        jac=lambda v: v - g,
        constraints={"type": "ineq", "fun": lambda v: r @ v - least, "jac": lambda v: r},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert solved.success
    assert found is not None
    numpy.testing.assert_allclose(found.numpy(), solved.x, atol=1e-4)


def test_the_first_steps_are_those_of_replay_and_missing_parts_count_as_zero() -> None:
    gradient, reference = torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 0.5])
    parts = constrained(
        [gradient, None, gradient], [reference, reference, None], torch.tensor(-9.0), torch.tensor(False)
    )
    for part, expected in zip(parts, (gradient + reference, reference, gradient), strict=True):
        assert part is not None
        torch.testing.assert_close(part, expected)


def test_each_step_takes_it_with_the_average_loss_of_the_tasks_before(fit: Fit) -> None:
    """Losses and gradients are taken anew; the step is what the weights have moved by."""
    losses: list[list[float]] = [[], [], []]
    kinds = []

    class Watch(GEC):
        def current_loss(self, current: Samples) -> ReplayLoss:
            loss = super().current_loss(current)
            losses[self.task].append(loss.other.item())
            return loss

        def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
            assert memory[0].tasks is not None
            assert (memory[0].tasks < self.task).all()
            values, both = [], []
            for samples in (current, memory[0]):
                loss = functional.cross_entropy(self.network(samples.images), samples.labels)
                values.append(loss.item())
                both.append(nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(self.network.parameters()))))
            new, reference = both
            tolerance = 1.05 * numpy.mean([numpy.mean(task) for task in losses[: self.task]])
            steps = len(losses[self.task])
            weight = max(
                0.0, (0.5 * (values[1] - tolerance) - float(new @ reference)) / (float(reference @ reference) + 1e-6)
            )
            kinds.append("warm" if steps < WARM_UP else "constrained" if weight else "free")
            before = nn.utils.parameters_to_vector(self.network.parameters())
            self.expected = (before - self.lr * (new + (1.0 if steps < WARM_UP else weight) * reference)).detach()
            return super().loss(current, *memory)

        def after_step(self) -> None:
            if self.batch_norm.is_replaying:
                torch.testing.assert_close(
                    nn.utils.parameters_to_vector(self.network.parameters()), self.expected, rtol=1e-4, atol=1e-5
                )

    fit(lambda: build(Watch, backbone=small_net(), lr=0.1), TinySequence(batch_size=3, epochs_per_task=3))
    assert set(kinds) == {"warm", "constrained", "free"}
