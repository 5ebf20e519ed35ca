"""A backbone of ``torch.compile`` is trained, loaded and resumed like any other."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Fit, TinySequence, small_net
from torch._dynamo.testing import CompileCounter

import ddn_lightning
from ddn_lightning import ER, ConfigurationError, DERPlusPlus, RandAugment, ResNet18, SmallNet

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's compiler


def test_its_checkpoint_loads_and_resumes(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> ER:
        return ER(torch.compile(small_net(), backend="aot_eager"), num_classes=6, buffer_size=8)

    data = TinySequence(batch_size=12)
    method = fit(make, data)
    assert type(method.backbone) is SmallNet
    assert "note: backbone: torch.compile(network) is taken as network.compile()" in capsys.readouterr().err
    method.trainer.save_checkpoint("trained.ckpt")
    assert not [name for name in torch.load("trained.ckpt", weights_only=True)["state_dict"] if "_orig_mod" in name]
    images = data.load(train=False)[0]
    loaded = ddn_lightning.load(Path("trained.ckpt"))
    assert torch.allclose(loaded.predict(images).probabilities, method.predict(images).probabilities, atol=1e-6)
    fit(make, TinySequence(batch_size=12), max_steps=4, enable_checkpointing=False).trainer.save_checkpoint("half.ckpt")
    resumed = fit(make, TinySequence(batch_size=12), ckpt_path="half.ckpt")
    assert torch.equal(resumed.head.weight, method.head.weight)


def test_it_is_still_compiled_with_its_backend() -> None:
    counter = CompileCounter()
    method = DERPlusPlus(backbone=torch.compile(ResNet18(width=4), backend=counter), num_classes=2)
    method.eval()(torch.zeros(1, 3, 8, 8))
    assert counter.frame_count == 1
    assert isinstance(copy.deepcopy(method.backbone), ResNet18)


def test_checks_see_the_network_within() -> None:
    frozen = torch.compile(ddn_lightning.FrozenFeatures(small_net()), backend="eager")
    with pytest.raises(ConfigurationError, match="RandAugment changes the images"):
        ER(frozen, num_classes=6, rand_augment=RandAugment())


@pytest.mark.parametrize(("given", "mode"), [(True, None), ("default", "default"), ("reduce-overhead",) * 2])
def test_an_argument_compiles_the_backbone(given: Any, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(SmallNet, "compile", lambda self, **options: compiled.append((self, options)))
    method = ER(small_net(), num_classes=6, compile=given)
    assert compiled == [(method.backbone, {"mode": mode})]


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="compile must be"):
        ER(small_net(), num_classes=6, compile="fast")
    assert ER(small_net(), num_classes=6).backbone._compiled_call_impl is None
