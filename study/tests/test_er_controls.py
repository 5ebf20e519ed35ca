"""Variants of ER that each change one thing."""

from typing import ClassVar

import pytest
import torch
from tiny import BatchNormNet, Fit, TinySequence
from torch.nn import functional

from ddn_lightning import ER, Forgetting, ReplayMethod
from ddn_lightning.networks.batch_statistics import measure
from study.er_controls import MemoryStep, MixedDraw, NewestStatistics, StatisticsDraw

MEAN = "backbone.layers.1.running_mean"


def run(fit: Fit, method_class: type[ER], **arguments: object) -> ReplayMethod:
    def build() -> ER:
        return method_class(BatchNormNet(), num_classes=6, buffer_size=20, replay_batch_size=8, **arguments)

    return fit(build, TinySequence(batch_size=6), callbacks=[Forgetting(statistics="both")])


def weights(method: ReplayMethod) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in method.network.parameters()])


def test_a_draw_for_the_statistics_changes_nothing_else(fit: Fit) -> None:
    plain, drawn = run(fit, ER), run(fit, StatisticsDraw)
    assert torch.equal(weights(plain), weights(drawn))
    assert not torch.equal(*(method.running_buffers[MEAN] for method in (plain, drawn)))
    assert torch.equal(*(method.calibrated_accuracy_matrix.nan_to_num() for method in (plain, drawn)))


def test_statistics_may_be_those_of_the_newest_task(fit: Fit) -> None:
    assert len(NewestStatistics(BatchNormNet(), num_classes=6).calibration_slots()) == 0
    method = run(fit, NewestStatistics)
    memory = method.memory[method.memory.slots_of([2])]
    assert 2 < len(memory) < 20
    found = measure(method, method, [method.transform(memory.images)])
    assert torch.equal(method.calibrated_buffers(64)[MEAN], found[MEAN])


@pytest.mark.parametrize(("incoming", "is_same"), [(0, True), (4, False)])
def test_incoming_samples_among_replayed_ones_change_their_normalisation(
    fit: Fit, incoming: int, is_same: bool
) -> None:
    plain, mixed = run(fit, ER), run(fit, MixedDraw, incoming=incoming)
    assert torch.equal(weights(plain), weights(mixed)) == is_same


def test_a_step_on_memory_alone_follows_each_step(fit: Fit) -> None:
    class Noted(MemoryStep):
        errors: ClassVar[list[float]] = []

        def after_step(self) -> None:
            state = self.memory.generator.get_state(), self.streams["augment"].get_state()
            replayed = self.draw_memory()
            if replayed is not None:
                loss = functional.cross_entropy(self.network(replayed.images), replayed.labels)
                expected = self.head.weight - 0.03 * torch.autograd.grad(loss, self.head.weight)[0]
            self.memory.generator.set_state(state[0])
            self.streams["augment"].set_state(state[1])
            super().after_step()
            if replayed is not None:
                self.errors.append(float((self.head.weight - expected).detach().abs().max()))

    method = run(fit, Noted)
    assert method.trainer.global_step == 12 + 11  # nothing is stored yet at the first
    assert len(Noted.errors) == 11
    assert max(Noted.errors) < 1e-6


def test_mixed_batches_count_as_memory_for_the_statistics(fit: Fit) -> None:
    both, memory = (run(fit, MixedDraw, running_statistics=which) for which in ("all", "memory"))
    assert torch.equal(weights(both), weights(memory))
    steps = [
        method.network.get_buffer(MEAN.replace("running_mean", "num_batches_tracked")) for method in (both, memory)
    ]
    assert steps[1] == steps[0] // 2 + 1  # the first batch finds the memory empty
