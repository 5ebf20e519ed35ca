"""Models of timm and torchvision are backbones, with weights from a file or from the library's site."""

import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from tiny import Fit, TinySequence
from torch import nn

import ddn_lightning
from ddn_lightning import ER, Backbone, ConfigurationError, Forgetting, TimmBackbone, TorchvisionBackbone
from ddn_lightning.checkpoint.construction import construction_of, make

BOTH = [(TimmBackbone, "test_resnet"), (TorchvisionBackbone, "shufflenet_v2_x0_5")]
of_both = pytest.mark.parametrize(("kind", "name"), BOTH)


def state_of(kind: type[Backbone], name: str) -> dict[str, torch.Tensor]:
    """The weights of the whole model, with its classifier."""
    whole = timm.create_model(name) if kind is TimmBackbone else torchvision.models.get_model(name)
    return {
        key: torch.rand_like(value) if value.is_floating_point() else value for key, value in whole.state_dict().items()
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *BOTH,
        (TimmBackbone, "test_vit"),
        (TimmBackbone, "mobilenetv3_small_050"),
        (TorchvisionBackbone, "mobilenet_v3_small"),
    ],
)
def test_the_size_of_the_features_is_that_of_the_output(kind: type[Backbone], name: str) -> None:
    size = 160 if name == "test_vit" else 32
    backbone = kind(name).eval()
    colour = torch.rand(2, 3, size, size)
    assert backbone(colour).shape == (2, backbone.feature_dim)
    grey = colour[:, :1]
    assert torch.equal(backbone(grey), backbone(grey.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_heads_that_classify_in_training_only_are_left_out(name: str) -> None:
    backbone = TorchvisionBackbone(name, arguments={"init_weights": False}).train()
    assert backbone(torch.rand(2, 3, 80, 80)).shape == (2, backbone.feature_dim)


def test_timm_takes_images_of_other_channels() -> None:
    backbone = TimmBackbone("test_resnet", arguments={"in_chans": 1})
    assert backbone(torch.rand(2, 1, 32, 32)).shape == (2, backbone.feature_dim)
    assert next(backbone.parameters()).shape[1] == 1


@of_both
def test_weights_come_from_a_file_without_its_classifier(kind: type[Backbone], name: str) -> None:
    state = state_of(kind, name)
    torch.save(state, "weights.pt")
    torch.save({"state_dict": state, "epoch": 3}, "training.pt")
    for path in ("weights.pt", Path("training.pt")):
        backbone = kind(name, pretrained=path)
        assert all(torch.equal(value, state[key]) for key, value in backbone.model.state_dict().items())


def test_weights_come_from_safetensors_too() -> None:
    from safetensors.torch import save_file

    state = state_of(*BOTH[0])
    save_file(state, "weights.safetensors")
    loaded = TimmBackbone("test_resnet", pretrained="weights.safetensors").model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in loaded.items())


@of_both
def test_weights_that_do_not_fit_are_refused_in_one_line(kind: type[Backbone], name: str) -> None:
    state = state_of(kind, name)
    first, *_, last = (key for key in kind(name).model.state_dict() if key.endswith("weight"))
    shape = {**state, last: torch.zeros(3)}
    lacking = {key: value for key, value in state.items() if key != first}
    for wrong, message in [
        (lacking, f"lacks {first}$"),
        ({**state, "a": first, "b": first, "c": first, "d": first}, "has no place for a, b, c and 1 more$"),
        (shape, f"has another shape of {last}$"),
    ]:
        torch.save(wrong, "wrong.pt")
        with pytest.raises(ConfigurationError, match=message) as error:
            kind(name, pretrained="wrong.pt")
        assert "\n" not in str(error.value)


def test_a_file_that_is_no_state_dict_is_refused() -> None:
    torch.save([1, 2], "list.pt")
    torch.save(nn.Linear(1, 1), "code.pt")  # would execute what it contains
    Path("text.pt").write_text("weights")
    for path in ("list.pt", "code.pt", "text.pt", "none.pt"):
        with pytest.raises(ConfigurationError, match=f"^pretrained must be .*{path}"):
            TimmBackbone("test_resnet", pretrained=path)


@of_both
def test_weights_that_cannot_be_fetched_are_explained(
    kind: type[Backbone], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("timm.create_model", offline)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(ConfigurationError, match=f"{name} cannot be fetched: .*no route.*pretrained <path>$"):
        kind(name, pretrained=True)


def test_what_cannot_be_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="name must be a model of timm, such as resnet18.*, got resnett18"):
        TimmBackbone("resnett18")
    with pytest.raises(ConfigurationError, match="name must be a model of torchvision, such as resnet18"):
        TorchvisionBackbone("resnett18")
    with pytest.raises(ConfigurationError, match="name must be a model with a linear classifier, got squeezenet1_1"):
        TorchvisionBackbone("squeezenet1_1")
    for kind, name in BOTH:
        with pytest.raises(
            ConfigurationError, match=f"{name} cannot be built: .*unexpected keyword argument 'nonsense'"
        ):
            kind(name, arguments={"nonsense": 1})
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigurationError, match=r"TimmBackbone needs timm: pip install ddn-lightning\[timm\]"):
        TimmBackbone("resnet18")


@of_both
def test_a_frozen_backbone_stays_in_evaluation_mode(kind: type[Backbone], name: str) -> None:
    backbone = kind(name, frozen=True)
    nn.Sequential(backbone).train()
    assert not any(part.training for part in backbone.modules())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert kind(name).train().model.training


def test_a_run_is_loaded_without_the_file_of_the_weights(fit: Fit) -> None:
    torch.save(state_of(*BOTH[0]), "weights.pt")
    arguments = {"act_layer": "gelu"}
    method = fit(
        lambda: ER(TimmBackbone("test_resnet", pretrained="weights.pt", arguments=arguments), num_classes=6),
        TinySequence(batch_size=12),
    )
    method.trainer.save_checkpoint("trained.ckpt")
    Path("weights.pt").unlink()
    loaded = ddn_lightning.load("trained.ckpt")
    assert construction_of(loaded.backbone) == construction_of(method.backbone)
    images = TinySequence().load(train=False)[0]
    assert torch.equal(loaded.predict(images).probabilities, method.predict(images).probabilities)


def test_a_backbone_is_made_anew_from_its_description() -> None:
    made = make(construction_of(TorchvisionBackbone("shufflenet_v2_x0_5", False, True)), Backbone, "backbone")
    assert made.frozen
    assert made.feature_dim == 1024


def test_a_library_model_learns_a_sequence(fit: Fit) -> None:
    forgetting = Forgetting(statistics="both")
    method = fit(lambda: ER(TimmBackbone("test_resnet"), num_classes=6, buffer_size=10), callbacks=[forgetting])
    assert method.calibrated_accuracy_matrix[-1].isfinite().all()
