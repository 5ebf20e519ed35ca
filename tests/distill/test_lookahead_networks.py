"""Every look-ahead works with a transformer, or is refused before training."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_method import build
from tiny import Fit, MakeTrainer, TinySequence
from torch import Tensor, nn

from ddn_lightning import ER, Backbone, ConfigurationError, DataDistillNet, SmallNet, TimmBackbone
from ddn_lightning.methods.mnemonics import Mnemonics

TINY_VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}


class Attending(Backbone):
    """torch's own layer of attention."""

    feature_dim = 8

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(images.flatten(1, 2)).mean(dim=1)  # a row of pixels is a token
        return features


class Opaque(torch.autograd.Function):
    """Has no forward-mode derivative."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        return features.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # type: ignore[override]
        return gradients[0]


class OpaqueNet(SmallNet):
    def forward(self, images: Tensor) -> Tensor:
        return Opaque.apply(super().forward(images))


def vit(dropout: float = 0.0) -> Backbone:
    rates = {"proj_drop_rate": dropout, "attn_drop_rate": dropout, "drop_path_rate": dropout}
    return TimmBackbone("vit_tiny_patch16_224", arguments={**TINY_VIT, **rates})


NETS: dict[str, Callable[[], Backbone]] = {
    "vit": vit,
    "torch": Attending,
    "vit with dropout": lambda: vit(0.1),
    "torch with dropout": lambda: Attending(0.1),
}
SLOW = ("torch", "vit with dropout")


@pytest.mark.parametrize("lookahead", ["exact", "head", "matching", "step"])
@pytest.mark.parametrize("net", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NETS])
def test_a_transformer_learns_its_labels_in_every_look_ahead(fit: Fit, net: str, lookahead: str) -> None:
    def start() -> ER:
        return build(ER, lambda: DataDistillNet(lookahead=lookahead), NETS[net]())

    before = start().distiller.generator_net[0].weight.detach().clone()
    method = fit(start, TinySequence(batch_size=6))
    assert method.tasks_finished == 3
    assert not torch.equal(method.distiller.generator_net[0].weight, before)


def test_the_pixels_of_a_memory_are_learned_through_a_transformer(fit: Fit) -> None:
    assert fit(lambda: build(Mnemonics, backbone=vit()), TinySequence(batch_size=6)).tasks_finished == 3


@pytest.mark.parametrize("lookahead", ["exact", "matching"])
def test_a_network_without_the_derivative_is_refused_before_training(make_trainer: MakeTrainer, lookahead: str) -> None:
    method = build(ER, lambda: DataDistillNet(lookahead=lookahead), OpaqueNet())
    with pytest.raises(ConfigurationError, match=f"lookahead must be head or step with OpaqueNet.*got {lookahead}"):
        make_trainer().fit(method, TinySequence(batch_size=6))
    assert method.task == -1


@pytest.mark.parametrize("lookahead", ["head", "step"])
def test_other_look_aheads_need_no_such_derivative(fit: Fit, lookahead: str) -> None:
    method = fit(lambda: build(ER, lambda: DataDistillNet(lookahead=lookahead), OpaqueNet()))
    assert method.tasks_finished == 3


def test_the_trial_changes_nothing(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> dict[str, Any]:
        return fit(lambda: build(ER, DataDistillNet), TinySequence(batch_size=6)).state_dict()  # with dropout

    tried = state()
    monkeypatch.setattr("ddn_lightning.distill.bilevel_distiller._check_forward_mode", lambda *_: None)
    untried = state()
    assert all(torch.equal(v.nan_to_num(), untried[n].nan_to_num()) for n, v in tried.items() if torch.is_tensor(v))
