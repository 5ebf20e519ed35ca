"""A checkpoint names classes and their arguments: nothing is imported, fetched or allocated for forged ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Fit, TinySequence, small_net

import ddn_lightning
from ddn_lightning import ER, Backbone, ConfigurationError, SmallNet, TimmBackbone, TorchvisionBackbone
from ddn_lightning.checkpoint.construction import construction_of, make

MEGABYTE = 2**20
LOADED = """
import json, resource, sys, time
import ddn_lightning, ddn_lightning.api
before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
try:
    ddn_lightning.load(sys.argv[1])
    message = "loaded"
except ddn_lightning.ConfigurationError as error:
    message = str(error)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([message, (after - before) * 1024, time.monotonic() - begin]))
"""


@pytest.fixture
def checkpoint(fit: Fit) -> dict[str, Any]:
    method = fit(lambda: ER(small_net(), num_classes=6, buffer_size=8), TinySequence(batch_size=12))
    method.trainer.save_checkpoint("good.ckpt")
    content: dict[str, Any] = torch.load("good.ckpt", weights_only=True)
    return content


def forge(checkpoint: dict[str, Any], **arguments: Any) -> None:
    checkpoint["ddn_lightning"]["model"]["init_args"] |= arguments
    torch.save(checkpoint, "forged.ckpt")


@pytest.mark.parametrize("path", ["net.Net", "antigravity.Net", "unittest.__main__.X", "this.s", "idlelib.idle.Net"])
def test_no_module_is_imported_for_a_class_that_a_checkpoint_names(
    checkpoint: dict[str, Any], path: str, imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.py").write_text("open('executed.txt', 'w')\n")
    monkeypatch.syspath_prepend(Path().absolute())
    ddn_lightning.load("good.ckpt")
    imported.clear()
    module = path.rpartition(".")[0]
    forge(checkpoint, backbone={"class_path": path, "init_args": {}})
    checkpoint["ddn_lightning"]["model"]["class_path"] = path
    for name, text in (("backbone", "backbone was made by"), ("method", "method was made by")):
        if name == "method":
            torch.save(checkpoint, "forged.ckpt")
        reader = ER.load_from_checkpoint if name == "backbone" else ddn_lightning.load
        with pytest.raises(ConfigurationError, match=f"^{text} {path}, which is not imported: [^\n]*$"):
            reader("forged.ckpt")
    assert module not in imported
    assert module not in sys.modules
    assert not Path("executed.txt").exists()


def test_a_lazy_module_is_not_asked_for_the_class(checkpoint: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(type(sys)):
        def __getattr__(self, name: str) -> type:
            Path("executed.txt").touch()
            return SmallNet

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    forge(checkpoint, backbone={"class_path": "lazy.Net", "init_args": {}})
    with pytest.raises(ConfigurationError, match="lazy.Net, which is not imported"):
        ddn_lightning.load("forged.ckpt")
    assert not Path("executed.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_classes": 10**7}, "expected a checkpoint for 10000000 classes, got one for 6"),
        (
            {"backbone": {"class_path": "ddn_lightning.ResNet18", "init_args": {"width": 700}}},
            "the checkpoint's weights do not fit ER with ResNet18: ",
        ),
        pytest.param(
            {"backbone": {"class_path": "ddn_lightning.SmallNet", "init_args": {"feature_dim": 10**10}}},
            "the checkpoint's weights do not fit ER with SmallNet: ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"backbone": {"class_path": "ddn_lightning.SmallNet", "init_args": {"feature_dim": 10**30}}},
            "ER cannot be made from the checkpoint: ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_forged_sizes_are_refused_before_memory_is_allocated(
    checkpoint: dict[str, Any], arguments: dict[str, Any], expected: str
) -> None:
    import re

    checkpoint["state_dict"]["meta"] = torch.zeros(1)  # a name that occurs in torch's errors about missing values
    forge(checkpoint, **arguments)
    done = subprocess.run([sys.executable, "-c", LOADED, "forged.ckpt"], capture_output=True, text=True, check=True)
    message, memory, seconds = json.loads(done.stdout)
    assert re.match(expected, message), message
    assert "\n" not in message
    assert memory < 150 * MEGABYTE
    assert seconds < 10  # 40 s before; mostly torch's imports on a busy machine


def test_the_trial_without_memory_draws_no_random_number(checkpoint: dict[str, Any]) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        ER(small_net(), num_classes=6, buffer_size=8)
        states.append(torch.get_rng_state())
        torch.manual_seed(3)
        ddn_lightning.load("good.ckpt")
        states.append(torch.get_rng_state())
    assert all(torch.equal(states[0], state) for state in states)


class Greedy(Backbone):
    """Opens weights unless it is told not to."""

    def __init__(self, pretrained: bool | str = True) -> None:
        super().__init__()
        if pretrained:
            Path("opened.txt").touch()
        self.feature_dim = 1


class Careful(Greedy):
    """Takes a file of weights, if any."""

    def __init__(self, pretrained: str | None = None) -> None:
        super().__init__(pretrained is not None)


@pytest.mark.parametrize("kind", [Greedy, Careful])
def test_no_pretrained_weights_are_opened_for_a_checkpoint(kind: type[Backbone]) -> None:
    for given in (True, "weights.pt", None):
        arguments = {} if given is None else {"pretrained": given}
        make({"class_path": f"{__name__}.{kind.__name__}", "init_args": arguments}, Backbone, "backbone")
    assert not Path("opened.txt").exists()


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        (TimmBackbone, "test_resnet", {"checkpoint_path": "nowhere.pt"}),
        (TorchvisionBackbone, "shufflenet_v2_x0_5", {"weights": "DEFAULT"}),
    ],
)
def test_no_weights_of_a_library_are_opened_for_a_checkpoint(
    kind: type[Backbone], name: str, arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    description = construction_of(kind(name))
    description["init_args"] |= {"pretrained": "nowhere.pt", "arguments": arguments}
    assert isinstance(make(description, Backbone, "backbone"), kind)


class Scaled(SmallNet):
    """Its constructor needs the value of a tensor, which a network without memory does not have."""

    def __init__(self) -> None:
        super().__init__(width=4, feature_dim=8)
        self.scale = torch.ones(1).item()


def test_a_network_that_needs_values_in_its_constructor_is_loaded(fit: Fit) -> None:
    method = fit(lambda: ER(Scaled(), num_classes=6, buffer_size=8), TinySequence(batch_size=12))
    method.trainer.save_checkpoint("scaled.ckpt")
    images = TinySequence().load(train=False)[0]
    loaded = ddn_lightning.load("scaled.ckpt")
    assert torch.equal(loaded.predict(images).probabilities, method.predict(images).probabilities)
