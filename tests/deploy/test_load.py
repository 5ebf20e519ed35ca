"""A trained method is taken away: loaded without arguments by hand, and asked about images from anywhere."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_method import COMBINATIONS, build
from PIL import Image
from tiny import TinySequence, quiet_trainer, small_net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddn_lightning
from ddn_lightning import (
    ER,
    ConfigurationError,
    DataDistillNet,
    LabelDistiller,
    LearnedLabels,
    ReplayMethod,
    ResNet18,
    RingBuffer,
    SmallNet,
)

Fit = Callable[..., ReplayMethod]


class NamedSequence(TinySequence):
    class_names = ("ant", "bee", "cat", "dog", "eel", "fox")


def saved(fit: Fit, folder: Path, make: Callable[[], ReplayMethod]) -> ReplayMethod:
    method = fit(make, NamedSequence(batch_size=6))
    method.trainer.save_checkpoint(folder / "trained.ckpt")
    return method


@pytest.mark.parametrize(("method_class", "distiller_class"), [c for c in COMBINATIONS if c.id not in ("SlowEnding",)])
def test_a_method_loads_itself_and_predicts_the_same(
    fit: Fit, tmp_path: Path, method_class: type[ReplayMethod], distiller_class: type[LabelDistiller] | None
) -> None:
    method = saved(fit, tmp_path, lambda: build(method_class, distiller_class, small_net()))
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt")
    assert type(loaded) is method_class
    assert type(loaded.distiller) is type(method.distiller)
    assert type(loaded.memory) is type(method.memory)
    images, _ = NamedSequence().load(train=False)
    assert torch.equal(loaded.predict(images).probabilities, method.predict(images).probabilities)
    assert torch.equal(loaded.accuracy_matrix.nan_to_num(), method.accuracy_matrix.nan_to_num())


@pytest.fixture
def trained(fit: Fit, tmp_path: Path) -> ReplayMethod:
    return saved(fit, tmp_path, lambda: ER(small_net(), num_classes=6, distiller=DataDistillNet(beta=0.3), lr=0.2))


def test_every_argument_comes_back(trained: ReplayMethod, tmp_path: Path) -> None:
    for loaded in (ER.load_from_checkpoint(tmp_path / "trained.ckpt"), ddn_lightning.load(tmp_path / "trained.ckpt")):
        assert (loaded.lr, loaded.distiller.beta, loaded.backbone.feature_dim) == (0.2, 0.3, 8)
        assert loaded.class_names == NamedSequence.class_names
        assert loaded.image_shape == (1, 8, 8)
    other = ddn_lightning.load(tmp_path / "trained.ckpt", lr=0.5, backbone=small_net())
    assert other.lr == 0.5


def test_images_of_any_kind_are_predicted_alike(trained: ReplayMethod, tmp_path: Path) -> None:
    images, _ = NamedSequence().load(train=False)
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(images[:5]):
        Image.fromarray(image[0].numpy()).save(folder / f"{number}.png")
    expected = trained.predict(images[:5])
    opened = [Image.open(folder / f"{number}.png") for number in range(5)]
    for given in (folder, str(folder), opened, [folder / "0.png", *images[1:5]], list(images[:5])):
        assert torch.equal(trained.predict(given).probabilities, expected.probabilities)
    found = trained.predict(folder)
    assert [Path(file).name for file in found.files] == [f"{n}.png" for n in range(5)]
    assert found.names == [NamedSequence.class_names[label] for label in expected.labels]
    assert found.top(2)[0][0] == next(iter(found))
    assert torch.allclose(found.probabilities.sum(dim=1), torch.ones(5))
    assert len(trained.predict([])) == 0


def test_a_folder_is_searched_with_its_folders(trained: ReplayMethod, tmp_path: Path) -> None:
    for name in ("b/one.png", "a/two.png", "three.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), len(name)).save(tmp_path / "photos" / name)
    found = trained.predict(tmp_path / "photos")
    assert [Path(file).name for file in found.files] == ["three.png", "two.png", "one.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="images must be a folder with images in it, got .*empty"):
        trained.predict(tmp_path / "empty")


def test_any_loader_of_images_works_with_the_trainer(trained: ReplayMethod, tmp_path: Path) -> None:
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt")
    images, labels = NamedSequence().load(train=False)
    for data in (TensorDataset(images, labels), images):
        found = quiet_trainer().predict(loaded, DataLoader(data, batch_size=7))
        assert torch.equal(torch.cat(found), trained.predict(images).labels)


def test_raw_images_are_not_taken_for_normalised_ones_nor_the_other_way_round(trained: ReplayMethod) -> None:
    images, _ = NamedSequence().load(train=False)
    trained.eval()
    with pytest.raises(ConfigurationError, match=r"^a prediction takes raw uint8 images, got float32: call method\("):
        quiet_trainer().predict(trained, DataLoader(images / 255, batch_size=7))
    with pytest.raises(ConfigurationError, match=r"^a call of the method takes normalised .*method\.predict\(images\)"):
        trained(images)
    expected = trained.predict(images).probabilities
    torch.testing.assert_close(trained(trained.normalised(images)).softmax(dim=1), expected)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.rand(2, 1, 8, 8),
            r"\(number, 1, 8, 8\), not normalised, got float32 of shape \(2, 1, 8, 8\)",
        ),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"got uint8 of shape \(2, 3, 8, 8\)"),
        ("nowhere.png", "cannot decode the image nowhere.png"),
        (np.zeros((2, 1, 8, 8), dtype=np.uint8), "a list of these, got ndarray$"),
        (5, "a list of these, got int$"),
        ([5], "a list of these, got int$"),
    ],
)
def test_images_that_do_not_fit_are_named(trained: ReplayMethod, images: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trained.predict(images)


def test_a_batch_without_images_is_refused(trained: ReplayMethod) -> None:
    with pytest.raises(ConfigurationError, match="batch_size must be positive, got 0"):
        trained.predict([], batch_size=0)


def test_arguments_that_do_not_fit_the_checkpoint_are_named(trained: ReplayMethod, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="^ER has no argument foo, width$"):
        ddn_lightning.load(tmp_path / "trained.ckpt", width=1, foo=1, lr=0.1)
    with pytest.raises(ConfigurationError, match=r"^the checkpoint's weights do not fit ER with ResNet18: .{20,200}$"):
        ddn_lightning.load(tmp_path / "trained.ckpt", backbone=ResNet18(in_channels=1, width=4))


def test_a_method_or_memory_of_a_script_is_no_obstacle(fit: Fit, tmp_path: Path) -> None:
    class Mine(ER):
        pass

    class Ring(RingBuffer):
        pass

    images, _ = NamedSequence().load(train=False)
    saved(fit, tmp_path, lambda: Mine(small_net(), num_classes=6))
    with pytest.raises(ConfigurationError, match=r"classes=\[Mine\], or use Mine.load_from_checkpoint\(path\)$"):
        ddn_lightning.load(tmp_path / "trained.ckpt")
    assert type(ddn_lightning.load(tmp_path / "trained.ckpt", classes=[Mine])) is Mine
    assert Mine.load_from_checkpoint(tmp_path / "trained.ckpt").predict(images)
    distiller = {"buffer_size": 30, "distiller": LearnedLabels()}  # with parameters for each slot
    method = saved(fit, tmp_path, lambda: ER(small_net(), num_classes=6, memory=Ring(12), **distiller))
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt")
    assert torch.equal(loaded.predict(images).probabilities, method.predict(images).probabilities)


def test_an_untrained_method_cannot_predict() -> None:
    with pytest.raises(ConfigurationError, match="predict needs a trained method"):
        ER(small_net(), num_classes=6).predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))


def test_a_class_that_is_not_imported_is_named_or_given(fit: Fit, tmp_path: Path) -> None:
    class Local(SmallNet):
        pass

    saved(fit, tmp_path, lambda: ER(Local(width=4, feature_dim=8), num_classes=6))
    with pytest.raises(ConfigurationError, match=r"backbone was made by .*<locals>.Local, which is not imported: .*"):
        ddn_lightning.load(tmp_path / "trained.ckpt")
    for loaded in (
        ddn_lightning.load(tmp_path / "trained.ckpt", classes=[Local]),
        ER.load_from_checkpoint(tmp_path / "trained.ckpt", classes=[Local]),
    ):
        assert type(loaded.backbone) is Local
    assert ddn_lightning.load(tmp_path / "trained.ckpt", backbone=small_net()).predict(NamedSequence().load(True)[0])


def test_a_class_of_a_notebook_is_found_in_that_notebook_only(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(SmallNet):
        pass

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)
    method, images = (
        saved(fit, tmp_path, lambda: ER(Own(width=4, feature_dim=8), num_classes=6)),
        NamedSequence().load(True)[0],
    )
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt")
    assert type(loaded.backbone) is Own
    assert torch.equal(loaded.predict(images).probabilities, method.predict(images).probabilities)
    monkeypatch.delattr(sys.modules["__main__"], "Own")
    with pytest.raises(ConfigurationError, match=r"backbone was made by __main__.Own, which is not imported"):
        ddn_lightning.load(tmp_path / "trained.ckpt")


def test_a_network_from_elsewhere_is_asked_for(fit: Fit, tmp_path: Path) -> None:
    def elsewhere() -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        network.feature_dim = 8
        return network

    method = saved(fit, tmp_path, lambda: ER(elsewhere(), num_classes=6))
    with pytest.raises(ConfigurationError, match=r"holds no torch\.nn\.modules\.container\.Sequential: pass backbone="):
        ddn_lightning.load(tmp_path / "trained.ckpt")
    images, _ = NamedSequence().load(train=False)
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt", backbone=elsewhere())
    assert torch.equal(loaded.predict(images).probabilities, method.predict(images).probabilities)


@pytest.mark.parametrize("path", ["os.system", "torch.nn.Linear", "ddn_lightning.Samples", "ddn_lightning.SplitDigits"])
def test_nothing_but_what_belongs_there_is_made(trained: ReplayMethod, tmp_path: Path, path: str) -> None:
    checkpoint = torch.load(tmp_path / "trained.ckpt", weights_only=True)
    checkpoint["ddn_lightning"]["model"]["init_args"]["backbone"] = {"class_path": path, "init_args": {}}
    torch.save(checkpoint, tmp_path / "changed.ckpt")
    with pytest.raises(ConfigurationError, match=f"backbone must be a Backbone, got {path}"):
        ddn_lightning.load(tmp_path / "changed.ckpt")


def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.ckpt").write_text("hello")
    with pytest.raises(ConfigurationError, match="text.ckpt is damaged, or is no checkpoint: File is not a zip file$"):
        ddn_lightning.load(tmp_path / "text.ckpt")
    torch.save({"network": small_net()}, tmp_path / "objects.ckpt")
    with pytest.raises(
        ConfigurationError, match="no checkpoint: it contains other things than tensors and plain values$"
    ):
        ddn_lightning.load(tmp_path / "objects.ckpt")
    for path in (tmp_path, "~nobody-of-this-name/run"):
        with pytest.raises(ConfigurationError, match=r"path must be a run folder with checkpoints/last.ckpt"):
            ddn_lightning.load(path)


def test_signatures_show_the_arguments_of_the_bases() -> None:
    import inspect

    shown = inspect.signature(ER).parameters
    assert list(shown)[:4] == ["backbone", "num_classes", "buffer_size", "replay_batch_size"]
    assert {"lr", "momentum", "batches", "distiller", "mask_unseen", "running_statistics"} <= set(shown)
    assert shown["lr"].default == 0.03


class Weighted(ER):
    """With an argument that is a plain dictionary."""

    def __init__(self, *args: Any, weights: dict[str, float] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights = weights


@pytest.mark.parametrize("weights", [{}, {"a": 1.0}])
def test_a_plain_dictionary_is_an_argument_like_others(fit: Fit, tmp_path: Path, weights: dict[str, float]) -> None:
    saved(fit, tmp_path, lambda: Weighted(small_net(), num_classes=6, buffer_size=12, weights=weights))
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt", backbone=small_net())
    assert isinstance(loaded, Weighted)
    assert loaded.weights == weights


class WithoutTransform(ER):
    """Takes few arguments, and not the transform."""

    def __init__(self, backbone: ddn_lightning.Backbone, num_classes: int, rate: float = 0.1) -> None:
        super().__init__(backbone, num_classes, buffer_size=10, replay_batch_size=5, lr=rate)


def test_a_class_without_the_argument_loads_with_the_transform_of_its_data(fit: Fit, tmp_path: Path) -> None:
    method = fit(lambda: WithoutTransform(small_net(), num_classes=6, rate=0.2), TinySequence(batch_size=6))
    method.trainer.save_checkpoint(tmp_path / "trained.ckpt")
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt")
    images = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(loaded.predict(images).probabilities, method.eval().predict(images).probabilities)
