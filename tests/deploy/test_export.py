"""A trained method leaves the package as a file that gives the same probabilities."""

import importlib.util
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import COMBINATIONS, build
from tiny import BatchNormNet, Fit, TinySequence, small_net
from torch import Tensor

import ddn_lightning
from ddn_lightning import CLSER, ER, ConfigurationError, DataDistillNet, LabelDistiller, ReplayMethod
from ddn_lightning.callbacks import Forgetting
from ddn_lightning.deploy import export as model_file
from ddn_lightning.deploy.export import onnx_session
from ddn_lightning.errors import SavingError

METADATA = ("class_names", "image_shape", "method", "ddn_lightning")
QUICK = ("ER", "BiC", "ICaRL")  # an ONNX export takes more than a second
EVERY = [
    pytest.param(*found.values, id=found.id, marks=[] if found.id in QUICK else pytest.mark.slow)
    for found in COMBINATIONS
]


class NamedSequence(TinySequence):
    class_names = ("ant", "bee", "cat", "dog", "eel", "fox")


def random_images(size: int) -> Tensor:
    return torch.randint(256, (size, 1, 8, 8), dtype=torch.uint8)


def onnx_probabilities(path: Path, images: Tensor) -> Tensor:
    session = onnx_session(path)
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@pytest.fixture
def trained(fit: Fit) -> ReplayMethod:
    return fit(lambda: build(ER, DataDistillNet), NamedSequence(batch_size=6))


@pytest.mark.parametrize(("method_class", "distiller_class"), EVERY)
def test_an_onnx_file_of_every_method_predicts_the_same(
    fit: Fit, tmp_path: Path, method_class: type[ReplayMethod], distiller_class: type[LabelDistiller] | None
) -> None:
    method = fit(lambda: build(method_class, distiller_class), NamedSequence(batch_size=6))
    assert method.export(tmp_path / "model.onnx") <= 1e-5
    for size in (1, 5):
        images = random_images(size)
        expected = method.predict(images).probabilities
        assert expected.std(dim=1).max() > 1e-3  # they tell classes apart
        torch.testing.assert_close(onnx_probabilities(tmp_path / "model.onnx", images), expected, rtol=0, atol=1e-5)
    found = onnx_session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(found["class_names"]) == list(NamedSequence.class_names)
    assert json.loads(found["image_shape"]) == [1, 8, 8]
    assert (found["method"], found["ddn_lightning"]) == (method_class.__name__, version("ddn-lightning"))


def test_the_method_s_own_scores_are_in_a_pt2_file(fit: Fit) -> None:
    method = fit(lambda: build(CLSER, evaluate="stable"), NamedSequence(batch_size=6))
    assert method.export("model.pt2") <= 1e-5
    images = random_images(5)
    expected = method.predict(images).probabilities
    network = method.network.eval()
    assert not torch.allclose(network(method.normalised(images)).softmax(dim=1), expected, atol=1e-3)
    found = torch.export.load("model.pt2").module()(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_calibrated_statistics_are_in_the_file(fit: Fit) -> None:
    calibrating = Forgetting(statistics="memory")
    method = fit(lambda: build(ER, backbone=BatchNormNet()), NamedSequence(batch_size=6), callbacks=[calibrating])
    method.trainer.save_checkpoint("trained.ckpt")
    images = random_images(5)
    with method.uncalibrated():
        running = method.predict(images).probabilities
    ddn_lightning.load("trained.ckpt").export("model.pt2")
    found = torch.export.load("model.pt2").module()(images)
    torch.testing.assert_close(found, method.predict(images).probabilities, rtol=0, atol=1e-5)
    assert not torch.allclose(found, running, atol=1e-3)


def test_a_pt2_file_has_metadata_and_no_weights_that_it_does_not_use(trained: ReplayMethod) -> None:
    trained.export("model.pt2")
    metadata: dict[str, Any] = dict.fromkeys(METADATA, "")
    program = torch.export.load("model.pt2", extra_files=metadata)
    assert json.loads(metadata["class_names"]) == list(NamedSequence.class_names)
    assert metadata["method"] == "ER"
    assert not [name for name in program.state_dict if "distiller" in name or "matrix" in name]
    assert {"method.head.weight", "method.backbone.layers.1.running_mean"} <= set(program.state_dict)


def test_weights_in_channels_last_are_exported_without_a_warning(fit: Fit) -> None:
    method = fit(lambda: ER(small_net().to(memory_format=torch.channels_last), num_classes=6))
    assert method.export("model.pt2") <= 1e-5


def test_an_export_leaves_the_method_as_it_was(trained: ReplayMethod) -> None:
    trained.train()
    before = {name: value.clone() for name, value in trained.named_buffers()}
    expected = trained.predict(random := random_images(3)).probabilities
    trained.export("model.pt2")
    assert all(part.training for part in trained.modules() if part is not trained.distiller)
    assert all(torch.equal(value.nan_to_num(), before[name].nan_to_num()) for name, value in trained.named_buffers())
    assert torch.equal(trained.predict(random).probabilities, expected)


@pytest.mark.parametrize("wrong", [0.5, torch.nan])
def test_a_file_that_predicts_otherwise_replaces_nothing(
    trained: ReplayMethod, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(images: Tensor) -> Tensor:  # wrong for large batches only
        return trained.predict(images).probabilities if len(images) < 5 else torch.full((len(images), 6), wrong)

    Path("model.pt2").write_text("before")
    monkeypatch.setitem(model_file.FORMATS, ".pt2", model_file.Format(model_file._write_pt2, lambda path: run))
    with pytest.raises(SavingError, match=r"model.pt2 is not written: its probabilities would differ .* by [0-9n]"):
        trained.export("model.pt2")
    assert [path.name for path in Path().iterdir()] == ["model.pt2"]
    assert Path("model.pt2").read_text() == "before"


class Fickle(BatchNormNet):
    """A network whose graph depends on the images."""

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = super().forward(images)
        return features if features.sum() > 0 else -features


def test_what_cannot_be_exported_is_said_in_one_line(trained: ReplayMethod, fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match=r"output must be a file that ends in .onnx or .pt2, got model.pth"):
        trained.export("model.pth")
    with pytest.raises(ConfigurationError, match="export needs a trained method: this one has seen no images"):
        build(ER).export("model.pt2")
    fickle = fit(lambda: build(ER, backbone=Fickle()))
    with pytest.raises(ConfigurationError, match="torch.export cannot capture Fickle and its method: .+") as error:
        fickle.export("model.pt2")
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigurationError, match=r"onnxruntime cannot run this method, try a .pt2: .+Conv") as error:
        trained.double().export("model.onnx")
    assert "\n" not in str(error.value)
    assert list(Path().iterdir()) == []
    assert trained.export("model.pt2") <= 1e-5


def test_a_missing_package_is_named(trained: ReplayMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(model_file, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(
        ConfigurationError, match=r'.onnx needs onnxruntime, not installed: pip install -e ".\[export\]"'
    ):
        trained.export("model.onnx")
    assert trained.export("model.pt2") <= 1e-5


def test_an_export_leaves_no_threads_that_a_forked_process_would_wait_for(
    trained: ReplayMethod, tmp_path: Path
) -> None:
    trained.export(tmp_path / "model.onnx")
    threads = len(os.listdir("/proc/self/task"))
    session = onnx_session(tmp_path / "model.onnx")
    session.run(None, {"images": random_images(3).numpy()})
    assert len(os.listdir("/proc/self/task")) == threads
