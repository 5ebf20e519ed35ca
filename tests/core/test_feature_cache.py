"""Features of a frozen backbone, computed once, give what the frozen backbone gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from every_method import METHODS, SaveAlways, build
from tiny import BatchNormNet, Fit, TinySequence
from torch import Tensor

import ddn_lightning
from ddn_lightning import (
    ER,
    Backbone,
    Blurry,
    ConfigurationError,
    DataDistillNet,
    FrozenFeatures,
    GaussianDrift,
    ImageTransform,
    LabelNoise,
    LowRankMemory,
    ReplayMethod,
    RotatedImages,
    Stream,
)
from ddn_lightning.cli import main
from ddn_lightning.methods.pixel_distillation import PixelDistillation

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
TOLERANCE = 1e-6  # of weights near 1, after 12 steps


class PlainSequence(TinySequence):
    """Without augmentation."""

    padding, flip = 0, False


def net(cached: bool) -> Backbone:
    backbone = BatchNormNet()
    backbone.layers[1].running_mean.fill_(0.3)
    return FrozenFeatures(backbone) if cached else backbone.requires_grad_(False)


@pytest.mark.parametrize("lookahead", [None, "exact", "delayed"])
def test_the_run_is_that_of_the_frozen_backbone(fit: Fit, lookahead: str | None) -> None:
    def method(cached: bool) -> ReplayMethod:
        distiller = None if lookahead is None else lambda: DataDistillNet(lookahead=lookahead, lr=0.01)
        return build(ER, distiller, net(cached))

    whole, cached = (fit(lambda c=c: method(c), PlainSequence(batch_size=6, epochs_per_task=2)) for c in (False, True))
    learned = {name: value for name, value in whole.named_parameters() if value.requires_grad}
    assert learned
    for name, value in learned.items():
        # Adam divides G's gradients by their size, and their rounding with them
        tolerance = 1e-4 if name.startswith("distiller") else TOLERANCE
        assert torch.allclose(value, cached.get_parameter(name), rtol=0, atol=tolerance), name
    assert torch.equal(whole.accuracy_matrix.nan_to_num(), cached.accuracy_matrix.nan_to_num())
    assert cached.memory[cached.memory.slots].images.shape == (10, 8)


@pytest.mark.parametrize(
    "stream", [[Blurry(blur=0.5), LabelNoise()], [RotatedImages()], [GaussianDrift()]], ids=lambda kinds: str(kinds[0])
)
def test_the_features_of_a_stream_are_those_of_the_frozen_backbone(fit: Fit, stream: list[Stream]) -> None:
    def trained(cached: bool) -> ReplayMethod:
        return fit(lambda: build(ER, backbone=net(cached)), PlainSequence(batch_size=6, stream=stream))

    whole, cached = trained(False), trained(True)
    assert torch.allclose(whole.head.weight, cached.head.weight, rtol=0, atol=TOLERANCE)
    assert torch.equal(whole.accuracy_matrix.nan_to_num(), cached.accuracy_matrix.nan_to_num())
    held, same = (method.memory[method.memory.slots] for method in (whole, cached))
    assert held.labels.equal(same.labels)
    assert held.tasks.equal(same.tasks)
    assert same.images.shape == (10, 8)
    assert "images" not in vars(cached.sequence.train_set)  # read batch by batch, not as a whole


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_features_or_says_why_not(fit: Fit, method: type[ReplayMethod]) -> None:
    if issubclass(method, PixelDistillation | ddn_lightning.LoDM | ddn_lightning.RAR):
        with pytest.raises(ConfigurationError, match="(learns|changes) the images of the memory, which holds features"):
            build(method, backbone=net(True))
        return
    learned = fit(lambda: build(method, backbone=net(True)), PlainSequence(batch_size=6))
    assert learned.accuracy_matrix[-1].isfinite().all()


def test_the_backbone_sees_each_image_once(fit: Fit) -> None:
    seen: list[int] = []

    class Counting(BatchNormNet):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(len(images))
            return super().forward(images)

    fit(lambda: build(ER, backbone=FrozenFeatures(Counting())), PlainSequence(batch_size=6, epochs_per_task=3))
    assert sum(seen) == 1 + 72 + 72  # the trial of the shape, and both splits


def test_a_trained_method_predicts_for_images_and_is_loaded_with_its_backbone(fit: Fit) -> None:
    method = fit(lambda: build(ER, backbone=FrozenFeatures(ddn_lightning.SmallNet())), PlainSequence(batch_size=6))
    method.trainer.save_checkpoint("trained.ckpt")
    images, labels = PlainSequence().load(train=False)
    predicted = ddn_lightning.load("trained.ckpt").predict(images)
    accuracy = 100 * (predicted.labels == labels).double().mean()
    assert accuracy == pytest.approx(method.accuracy_matrix[-1].mean().item(), abs=1e-4)


def test_another_method_gets_the_images_of_the_same_data(fit: Fit) -> None:
    sequence = PlainSequence(batch_size=6)
    fit(lambda: build(ER, backbone=net(True)), sequence)
    assert sequence.served(train=True).images.dim() == 2
    again = fit(lambda: build(ER), sequence)
    assert sequence.served(train=True) is sequence.train_set
    assert again.memory[again.memory.slots].images.dtype == torch.uint8


@pytest.mark.parametrize(
    ("method", "precision"),
    [(ER, "32-true"), (ER, "64-true"), (ER, "bf16-mixed"), (ddn_lightning.ICaRL, "32-true")],
)
def test_a_resumed_run_equals_one_that_was_not_stopped(
    fit: Fit, method: type[ReplayMethod], precision: str, tmp_path: Path
) -> None:
    def trained(**arguments: Any) -> ReplayMethod:
        sequence = PlainSequence(batch_size=6)
        return fit(lambda: build(method, backbone=net(True)), sequence, precision=precision, **arguments)

    whole = trained(callbacks=[SaveAlways(tmp_path)], enable_checkpointing=True)
    resumed = trained(ckpt_path=tmp_path / "step6.ckpt")
    assert torch.equal(whole.head.weight, resumed.head.weight)
    assert torch.equal(whole.accuracy_matrix.nan_to_num(), resumed.accuracy_matrix.nan_to_num())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_equal_one(fit: Fit) -> None:
    def trained(**arguments: Any) -> ReplayMethod:
        return fit(lambda: build(ER, DataDistillNet, net(True)), PlainSequence(batch_size=5), **arguments)

    one, two = trained(), trained(devices=2, strategy="ddp_fork")
    assert torch.allclose(one.head.weight, two.head.weight, rtol=0, atol=TOLERANCE)
    assert torch.equal(one.accuracy_matrix.nan_to_num(), two.accuracy_matrix.nan_to_num())


class Noisy(ImageTransform):
    """A user's augmentation, neither a crop nor a flip."""

    def __call__(self, images: Tensor, generator: torch.Generator | None = None, *args: Any) -> Tensor:
        noise = 0 if generator is None else torch.rand(images.shape, generator=generator)
        return super().__call__(images, None, *args) + noise


def test_augmentation_is_refused_before_training_with_the_options_that_switch_it_off(fit: Fit) -> None:
    options = r"--model.transform ImageTransform --model.transform.mean '\[0.5\]' --model.transform.std '\[0.25\]'"
    with pytest.raises(ConfigurationError, match=f"got padding = 1 and flip = True: .*{options}"):
        fit(lambda: build(ER, backbone=net(True)), TinySequence(batch_size=6))
    with pytest.raises(ConfigurationError, match="FrozenFeatures needs data without augmentation"):
        fit(lambda: build(ER, backbone=net(True), transform=Noisy((0.5,), (0.25,))), TinySequence(batch_size=6))
    plain = ImageTransform((0.5,), (0.25,))
    fit(lambda: build(ER, backbone=net(True), transform=plain), TinySequence(batch_size=6), max_steps=1)


def test_a_memory_that_learns_images_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="LowRankMemory learns the images of the memory"):
        build(ER, backbone=net(True), memory=LowRankMemory(matching_width=8))


def test_the_command_caches_features_by_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    overlay = {"class_path": "FrozenFeatures", "init_args": {"backbone": {"class_path": "SmallNet"}}}
    Path("own.yaml").write_text(yaml.safe_dump({"model": {"init_args": {"backbone": overlay}}}))
    options = ["--data.epochs_per_task=1", "--trainer.enable_progress_bar=false", "--name=cached"]
    assert main(["fit", "-c", str(QUICKSTART), "-c", "own.yaml", *options]) == 0
    notes = capsys.readouterr().err
    assert all(f"note: computing the features of {n} images with SmallNet, once" in notes for n in ("1,437", "360"))
    assert ddn_lightning.load("runs/cached").predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).labels.shape == (1,)
    augmented = ["--model.transform=ImageTransform", "--model.transform.mean=[0.5]", "--model.transform.std=[0.3]"]
    augmented += ["--model.transform.flip=true", "--name=refused"]
    assert main(["fit", "-c", str(QUICKSTART), "-c", "own.yaml", *options, *augmented]) == 2
    assert "FrozenFeatures needs data without augmentation" in capsys.readouterr().err
    assert not Path("runs/refused").exists()


def test_kept_features_serve_later_runs_on_the_same_images_and_network(fit: Fit, tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(BatchNormNet):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(len(images))
            return super().forward(images)

    def trained(backbone: Backbone, **arguments: Any) -> ReplayMethod:
        seen.clear()
        cached = FrozenFeatures(backbone, cache_dir=str(tmp_path))
        return fit(lambda: build(ER, backbone=cached), PlainSequence(batch_size=6, **arguments))

    backbone = Counting()
    first, again = trained(backbone), trained(backbone)
    assert sum(seen) == 1  # the trial of the shape
    assert torch.equal(first.head.weight, again.head.weight)
    assert len(list(tmp_path.iterdir())) == 2
    trained(backbone, stream=[RotatedImages()])
    assert sum(seen) == 1 + 3 * (72 + 72)
    with torch.no_grad():
        backbone.layers[0].weight += 1
    trained(backbone)
    assert sum(seen) == 1 + 72 + 72
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ConfigurationError, match="cannot be read: .*delete it"):
        trained(backbone)
