"""Both look-aheads work with any network; one that mixed precision cannot serve is refused before training."""

from collections.abc import Callable
from functools import partial
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


@pytest.mark.parametrize("lookahead", ["exact", "delayed"])
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


@pytest.mark.parametrize("lookahead", ["exact", "delayed"])
def test_single_precision_needs_no_forward_mode_derivative(fit: Fit, lookahead: str) -> None:
    assert fit(lambda: build(ER, lambda: DataDistillNet(lookahead=lookahead), OpaqueNet())).tasks_finished == 3


def test_a_network_without_the_derivative_is_refused_where_autocast_needs_it(make_trainer: MakeTrainer) -> None:
    method = build(ER, lambda: DataDistillNet(lookahead="delayed"), OpaqueNet())
    with pytest.raises(ConfigurationError, match="lookahead must be exact in mixed precision with OpaqueNet.*delayed"):
        make_trainer(precision="bf16-mixed").fit(method, TinySequence(batch_size=6))
    assert method.task == -1


def test_the_trial_changes_nothing(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> dict[str, Any]:
        distiller = partial(DataDistillNet, lookahead="delayed")  # on a network with dropout
        return fit(lambda: build(ER, distiller), TinySequence(batch_size=6), precision="bf16-mixed").state_dict()

    tried = state()
    monkeypatch.setattr("ddn_lightning.distill.bilevel_distiller._check_forward_mode", lambda *_: None)
    untried = state()
    assert all(torch.equal(v.nan_to_num(), untried[n].nan_to_num()) for n, v in tried.items() if torch.is_tensor(v))
