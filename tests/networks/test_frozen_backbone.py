"""A backbone without trained parameters keeps its BatchNorm statistics."""

from collections.abc import Callable

import pytest
import torch
from every_method import build
from tiny import BatchNormNet, Fit, TinySequence

from ddn_lightning import CLSER, ER, Backbone, DataDistillNet, Forgetting, ICaRL, ReplayMethod, TimmBackbone

LOOK_AHEADS = ["exact", "delayed"]


def frozen_net() -> Backbone:
    """As a user freezes it."""
    net = BatchNormNet()
    net.layers[1].running_mean.fill_(0.3)
    return net.requires_grad_(False)


def frozen_timm() -> Backbone:
    return TimmBackbone("test_resnet", frozen=True)


def distilled(lookahead: str) -> ReplayMethod:
    return build(ER, lambda: DataDistillNet(lookahead=lookahead), frozen_net())


CASES: dict[str, Callable[[], ReplayMethod]] = {
    "er": lambda: build(ER, backbone=frozen_net()),
    "concatenated": lambda: build(ER, backbone=frozen_net(), batches="concatenated"),
    "cls_er": lambda: build(CLSER, backbone=frozen_net()),
    "icarl": lambda: build(ICaRL, backbone=frozen_net()),
    "timm": lambda: build(ER, DataDistillNet, frozen_timm()),
    **{name: lambda name=name: distilled(name) for name in LOOK_AHEADS},
}


@pytest.mark.parametrize("case", CASES)
def test_a_frozen_backbone_does_not_change(fit: Fit, case: str) -> None:
    before: dict[str, torch.Tensor] = {}

    def start() -> ReplayMethod:
        method = CASES[case]()
        before.update({name: b.clone() for name, b in method.named_buffers() if "running" in name or "tracked" in name})
        before.update({name: p.clone() for name, p in method.backbone.named_parameters("backbone")})
        before["head.weight"] = method.head.weight.detach().clone()
        return method

    method = fit(start, TinySequence(batch_size=6), callbacks=[Forgetting(statistics="memory")])
    after = method.state_dict()
    assert not torch.equal(after["head.weight"], before.pop("head.weight"))
    assert any("running_mean" in name for name in before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert method.running_buffers is None


def test_features_are_those_of_an_evaluation_in_training_too(fit: Fit) -> None:
    method = fit(CASES["er"], TinySequence(batch_size=6))
    images = torch.rand(4, 1, 8, 8)
    features = method.train().backbone(images)
    assert torch.equal(features, method.eval().backbone(images))


def test_calibration_says_that_it_has_no_effect(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    fit(CASES["er"], callbacks=[Forgetting(statistics="memory")], max_steps=1)
    assert "statistics=memory has no effect: BatchNormNet is frozen, and so is its BatchNorm" in capsys.readouterr().err


def test_a_partly_frozen_backbone_is_trained_as_before(fit: Fit) -> None:
    def start() -> ReplayMethod:
        net = BatchNormNet()
        net.layers[0].requires_grad_(False)
        return build(ER, backbone=net)

    method = fit(start, TinySequence(batch_size=6))
    assert method.get_buffer("backbone.layers.1.num_batches_tracked") > 0
