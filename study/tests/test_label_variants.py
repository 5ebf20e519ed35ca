"""Variants of Data-Distill-Net that each change one thing."""

import copy

import pytest
import torch
from tiny import BatchNormNet, Fit, TinySequence, random_samples
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from ddn_lightning import ER, DataDistillNet, FrozenNetwork, HardLabelControl, ReplayMethod, Samples
from ddn_lightning.distill.label_distiller import one_hot
from study import other_readings

VARIANTS = [
    other_readings.MovedByLookAhead,
    other_readings.OneOuterBatch,
    other_readings.CalibratedOuter,
    other_readings.DisjointHalves,
    other_readings.UnseenOuter,
    other_readings.SeesHardLabel,
    other_readings.FreeShare,
    other_readings.NoExtraPass,
]


def er(distiller: DataDistillNet | None) -> ER:
    return ER(BatchNormNet(), num_classes=6, buffer_size=20, replay_batch_size=8, distiller=distiller)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_learns_labels_and_is_the_method_alone_without_weight(
    variant: type[DataDistillNet], fit: Fit
) -> None:
    method = fit(lambda: er(variant()), TinySequence(batch_size=6))
    drawn = torch.Generator().manual_seed(0)
    samples, p = random_samples(5), torch.rand(5, 6, generator=drawn).softmax(1)
    labels = method.distiller.soft_labels(samples, p)
    assert torch.allclose(labels.sum(1), torch.ones(5))
    fresh = variant()
    torch.manual_seed(0)
    fresh.build(6, 20)
    before, after = (net.state_dict() for net in (fresh.generator_net, method.distiller.generator_net))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    alone, without_weight = (fit(lambda d=d: er(d), TinySequence(batch_size=6)) for d in (None, variant(alpha=0.0)))
    for name, parameter in alone.network.named_parameters():
        assert torch.equal(parameter, without_weight.network.get_parameter(name)), name


def test_the_look_ahead_moves_statistics_and_teaches_g_the_same(fit: Fit) -> None:
    kept_out, moved = (
        fit(lambda d=d: er(d()), TinySequence(batch_size=6)) for d in (DataDistillNet, other_readings.MovedByLookAhead)
    )
    for name, parameter in kept_out.named_parameters():
        assert torch.equal(parameter, moved.get_parameter(name)), name
    statistics = "backbone.layers.1.running_mean", "backbone.layers.1.num_batches_tracked"
    assert not torch.equal(*(m.get_buffer(statistics[0]) for m in (kept_out, moved)))
    tracked = [int(m.get_buffer(statistics[1])) for m in (kept_out, moved)]
    # 11 updates, as the first step has no memory; the inner batch twice in each, and one or two parts of the outer
    assert tracked[1] - tracked[0] == 11 * 2 + 3 + 8 * 2


def test_one_outer_batch_normalises_both_parts_together(fit: Fit) -> None:
    method = fit(lambda: er(other_readings.OneOuterBatch()), TinySequence(batch_size=6))
    current = method.augment(random_samples(6))
    (part,) = method.distiller.outer_batch(method, current)
    assert len(part) == 6 + 8
    assert torch.equal(part.images[:6], current.images)


def test_a_calibrated_outer_loss_is_that_of_a_network_calibrated_by_torch(fit: Fit) -> None:
    method = fit(lambda: er(other_readings.CalibratedOuter()), TinySequence(batch_size=6))
    method.train()
    current, memory = method.augment(random_samples(6)), method.augment(random_samples(8))
    network = other_readings.CalibratedNetwork(method.network)
    statistics = {name: buffer.clone() for name, buffer in method.network.named_buffers()}
    loss = network.loss(network.parameters, [current, memory])
    by_torch = copy.deepcopy(method.network)
    update_bn([memory.images], by_torch)
    by_torch.eval()
    parts = (nn.functional.cross_entropy(by_torch(part.images), part.labels) for part in (current, memory))
    assert torch.allclose(loss, torch.stack(list(parts)).sum(), rtol=1e-5)
    own = FrozenNetwork(method.network).loss(network.parameters, [current, memory])
    assert not torch.allclose(loss, own, rtol=1e-3)
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in method.network.named_buffers())
    assert all(layer.training for layer in method.network.modules())


def test_inner_and_outer_draws_have_no_slot_in_common(fit: Fit) -> None:
    method = fit(lambda: er(other_readings.DisjointHalves()), TinySequence(batch_size=6))
    inner, outer = set(), set()
    for _ in range(20):
        inner |= set(method.distiller.inner_batch(method).slots.tolist())
        outer |= set(method.distiller.outer_batch(method, random_samples(6))[1].slots.tolist())
    assert inner == set(range(0, 20, 2))
    assert outer == set(range(1, 20, 2))


def test_labels_are_learned_on_a_batch_before_the_classifier_is(fit: Fit) -> None:
    weights: list[Tensor] = []

    class Noted(other_readings.UnseenOuter):
        def outer_batch(self, method: ReplayMethod, current: Samples) -> list[Samples]:
            weights.append(method.head.weight.clone())
            return super().outer_batch(method, current)

    class After(ER):
        def after_step(self) -> None:
            weights.append(self.head.weight.clone())

    fit(
        lambda: After(BatchNormNet(), num_classes=6, buffer_size=20, replay_batch_size=8, distiller=Noted()),
        TinySequence(batch_size=6),
        max_steps=3,
    )
    first_step, learned_at, second_step, *_ = weights  # the first step has no memory yet to learn on
    assert torch.equal(first_step, learned_at)
    assert not torch.equal(learned_at, second_step)


def test_g_may_see_the_hard_label() -> None:
    p = torch.full((2, 4), 0.25)
    samples = Samples(torch.zeros(2, 1), torch.tensor([0, 3]))
    for variant, differ in ((DataDistillNet, False), (other_readings.SeesHardLabel, True)):
        distiller = variant()
        distiller.build(4, 10)
        soft = 2 * distiller.soft_labels(samples, p) - one_hot(samples, p)  # the half that G makes
        assert torch.allclose(soft[0], soft[1], atol=1e-6) != differ


@pytest.mark.parametrize(("logit", "is_hard"), [(-40.0, True), (40.0, False)])
def test_g_learns_its_share(logit: float, is_hard: bool) -> None:
    distiller = other_readings.FreeShare()
    distiller.build(4, 10)
    last = distiller.generator_net[-1]
    with torch.no_grad():
        last.bias[-1] = logit
    p, samples = torch.full((1, 4), 0.25), Samples(torch.zeros(1, 1), torch.tensor([2]))
    label = distiller.soft_labels(samples, p)
    expected = one_hot(samples, p) if is_hard else distiller.generator_net(p)[:, :4].softmax(1)
    assert torch.allclose(label, expected)


def test_without_an_extra_pass_the_tangent_is_the_change_of_logits_along_the_heads_gradient(fit: Fit) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    passes: list[int] = []

    class Noted(other_readings.NoExtraPass):
        def look_ahead(self, method: ReplayMethod, inner: Samples, outer: list[Samples]):  # type: ignore[no-untyped-def]
            features = self._rehearsed[2]
            found = super().look_ahead(method, inner, outer)
            head, gradients = method.head.double(), [p.grad.double() for p in method.head.parameters()]
            values = []
            for sign in (1, -1):
                moved = [p + sign * 1e-3 * g for p, g in zip(head.parameters(), gradients, strict=True)]
                values.append(nn.functional.linear(features.double(), *moved))
            method.head.float()
            seen.append((found.tangent.double(), (values[0] - values[1]) / 2e-3))
            return found

    for distiller in (Noted(), None):
        method = er(distiller)
        count = [0]
        method.backbone.register_forward_hook(
            lambda net, *_, count=count: count.__setitem__(0, count[0] + net.training)
        )
        if distiller is None:
            method.terms = (HardLabelControl(1.0),)
        fit(lambda method=method: method, TinySequence(batch_size=6), log_every_n_steps=1000)
        passes.append(count[0])
    assert passes[0] == passes[1]  # those of the control with hard labels
    assert len(seen) == 8  # the steps with old memory
    for tangent, by_differences in seen:
        torch.testing.assert_close(tangent, by_differences, rtol=1e-4, atol=1e-6)
