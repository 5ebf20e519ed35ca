"""Readings nearer to the letter of the paper, against their formulas."""

import copy
from typing import Any

import pytest
import torch
from tiny import BatchNormNet, Fit, TinySequence
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ddn_lightning import DataDistillNet, ReplayMethod, Samples
from study.other_readings import OneOuterBatch, WithinMixture
from study.paper_readings import FreshOuter, FromSecondTask, InnerRate, OldMemoryER, SeveralUpdates

LR, ALPHA, BETA = 0.1, 0.7, 0.8


def forward(net: nn.Module, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
    return functional_call(net, {**parameters, **{n: b.clone() for n, b in net.named_buffers()}}, (images,))


def label(distiller: DataDistillNet, p: Tensor, samples: Samples, is_mixed: bool) -> Tensor:
    """Eq. 8 where there is a G_old and ``is_mixed``, otherwise G alone; plus the hard label, normalised."""
    soft = distiller.generator_net(p).softmax(1)
    if is_mixed and distiller.snapshots:
        soft = (1 - BETA) * soft + BETA * distiller.old_generator_net(p).softmax(1)
    return (soft + torch.eye(6, dtype=p.dtype)[samples.labels]) / 2


def hypergradient(
    net: nn.Module, distiller: DataDistillNet, inner: Samples, outer: list[Samples], lr: float, is_mixed: bool
) -> list[Tensor]:
    """Algorithm 2 by autograd through its inner step."""
    parameters = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}
    logits = forward(net, parameters, inner.images)
    labels = label(distiller, logits.softmax(1).detach(), inner, is_mixed)
    soft = -(labels * logits.log_softmax(1)).sum(1).mean()
    steps = torch.autograd.grad(
        cross_entropy(logits, inner.labels) + ALPHA * soft, list(parameters.values()), create_graph=True
    )
    moved = {name: p - lr * step for (name, p), step in zip(parameters.items(), steps, strict=True)}
    value = torch.stack([cross_entropy(forward(net, moved, o.images), o.labels) for o in outer]).sum()
    return list(torch.autograd.grad(value, list(distiller.generator_net.parameters())))


def watched(
    fit: Fit, reading: type[DataDistillNet], lr: float = LR, is_mixed: bool = False, **arguments: Any
) -> tuple[ReplayMethod, list[tuple[int, list[Samples]]]]:
    """Train with a reading, each of whose updates must follow the formula; the task and outer batch of each."""
    drawn: dict[str, Any] = {}
    updates: list[tuple[int, list[Samples]]] = []

    class Watched(reading):  # type: ignore[misc,valid-type]
        def inner_batch(self, method: ReplayMethod) -> Samples | None:
            drawn.update(method=method, inner=super().inner_batch(method))
            return drawn["inner"]

        def outer_batch(self, method: ReplayMethod, current: Samples) -> list[Samples]:
            drawn.update(outer=super().outer_batch(method, current))
            return drawn["outer"]

        def _descend(self, value: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
            method = drawn["method"]
            expected = hypergradient(method.network, self, drawn["inner"], drawn["outer"], lr, is_mixed)
            stepped = super()._descend(value, optimizer)
            for found, gradient in zip(self.generator_net.parameters(), expected, strict=True):
                assert (found.grad - gradient).norm() <= 1e-6 * gradient.norm()  # a forward difference
            assert max(gradient.abs().max() for gradient in expected) > 0
            updates.append((method.task, drawn["outer"]))
            return stepped

    def make() -> OldMemoryER:
        distiller = Watched(alpha=ALPHA, beta=BETA, **arguments)
        return OldMemoryER(BatchNormNet(), 6, 30, replay_batch_size=8, lr=LR, distiller=distiller).double()

    return fit(make, TinySequence(batch_size=6)), updates


def test_equation_7_is_the_incoming_loss_plus_alpha_times_the_soft_loss_of_one_batch_of_old_memory(fit: Fit) -> None:
    tasks: list[int] = []

    class Watched(OldMemoryER):
        def loss(self, current: Samples, *memory: Samples) -> Any:
            self.before = copy.deepcopy((self.network, self.distiller, current, memory))
            return super().loss(current, *memory)

        def after_step(self) -> None:
            if self.task == 0:
                return
            net, distiller, current, (old,) = self.before
            assert set(old.tasks.tolist()) <= set(range(self.task))
            parameters = dict(net.named_parameters())
            logits = forward(net, parameters, old.images)
            labels = label(distiller, logits.softmax(1).detach(), old, is_mixed=True).detach()
            value = cross_entropy(forward(net, parameters, current.images), current.labels)
            value = value - ALPHA * (labels * logits.log_softmax(1)).sum(1).mean()
            gradients = torch.autograd.grad(value, list(parameters.values()))
            for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
                assert torch.allclose(self.network.get_parameter(name), p - LR * gradient, rtol=1e-10), name
            passes = [net.get_buffer(name) for name, _ in net.named_buffers() if name.endswith("tracked")]
            now = [self.network.get_buffer(n) for n, _ in self.network.named_buffers() if n.endswith("tracked")]
            assert [int(b - a) for a, b in zip(passes, now, strict=True)] == [2]  # one of each batch
            tasks.append(self.task)

    def make() -> OldMemoryER:
        distiller = DataDistillNet(alpha=ALPHA, beta=BETA, memory="running", compose="replace")
        return Watched(BatchNormNet(), 6, 30, replay_batch_size=8, lr=LR, distiller=distiller).double()

    fit(make, TinySequence(batch_size=6))
    assert tasks == [1] * 4 + [2] * 4


def test_g_old_in_the_inner_loop(fit: Fit) -> None:
    _, updates = watched(fit, WithinMixture, is_mixed=True)
    assert [task for task, _ in updates] == [0] * 3 + [1] * 4 + [2] * 4


def test_one_outer_batch_is_the_incoming_one_with_old_memory(fit: Fit) -> None:
    _, updates = watched(fit, OneOuterBatch, outer="current_and_old_memory")
    for task, (part,) in updates:
        assert set(part.tasks[:6].tolist()) == {task}
        assert set(part.tasks[6:].tolist()) <= set(range(task))
        assert len(part) == (6 + 8 if task else 6)


@pytest.mark.parametrize("balanced", [True, False])
def test_the_outer_batch_has_fresh_samples_of_the_task(fit: Fit, balanced: bool) -> None:
    method, updates = watched(fit, FreshOuter, balanced=balanced)
    parts = [(task, part) for task, (part,) in updates if task]
    for task, part in parts:
        assert set(part.tasks.tolist()) <= set(range(task + 1))
        assert len(part) == 16
        if balanced:
            assert (part.tasks == task).sum() == 8
    images = {image.numpy().tobytes() for image in method.sequence.training_samples(2).images}
    drawn = {i.numpy().tobytes() for task, part in parts if task == 2 for i in part.raw[part.tasks == 2]}
    assert drawn <= images
    assert len(drawn) > 12  # more than two incoming batches have, in four steps
    assert all(part.raw[:8].unique(dim=0).shape[0] == 8 for _, part in parts if balanced)


def test_a_uniform_outer_batch_has_each_sample_of_the_union_equally_often(fit: Fit) -> None:
    method, _ = watched(fit, FreshOuter, balanced=False)
    old = len(method.memory.slots_of([0, 1]))
    batches = [method.distiller.outer_batch(method, None)[0] for _ in range(400)]  # type: ignore[union-attr,operator]
    found = sum(int((part.tasks < 2).sum()) for part in batches) / 400
    expected = 16 * old / (24 + old)
    assert abs(found - expected) < 0.4  # standard error below 0.1


def test_several_updates_each_have_new_draws(fit: Fit) -> None:
    _, updates = watched(fit, SeveralUpdates, updates_per_step=3)
    assert len(updates) == 3 * 11
    slots = [tuple(parts[1].slots.tolist()) for task, parts in updates if task]
    assert len(set(slots)) > 0.9 * len(slots)


def test_g_may_learn_from_the_second_task_on(fit: Fit) -> None:
    method, updates = watched(fit, FromSecondTask)
    assert [task for task, _ in updates] == [1] * 4 + [2] * 4
    assert method.distiller.snapshots == 2  # type: ignore[union-attr]


def test_the_virtual_step_may_have_a_learning_rate_of_its_own(fit: Fit) -> None:
    watched(fit, InnerRate, lr=0.4, inner_lr=0.4)
