"""Datasets of torchvision, Hugging Face or one's own become a task sequence, or the reason is named why not."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from bit_for_bit import difference
from PIL import Image
from tiny import quiet_trainer
from torch.utils.data import DataLoader, Subset
from torchvision import tv_tensors
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import v2

import ddn_lightning
from ddn_lightning import ER, ConfigurationError, ImageTransform, ReplayMethod, SmallNet, SplitImageFolder, TaskSequence
from ddn_lightning.cli.resume import default_name
from ddn_lightning.data.split_dataset import SplitDataset

Fit = Callable[..., ReplayMethod]
PIXELS = numpy.random.default_rng(0).integers(0, 256, (12, 6, 5, 3), dtype=numpy.uint8)
LABELS = [0, 1, 2, 3] * 3


class Listed:
    """Samples from a list, and how often each was read."""

    def __init__(self, samples: Sequence[Any], classes: Any = None) -> None:
        self.samples = samples
        self.classes = classes
        self.reads = [0] * len(samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        return self.samples[index]


def listed(image_of: Callable[[Any], Any] = Image.fromarray, labels: Sequence[Any] = LABELS, **kwargs: Any) -> Listed:
    return Listed([(image_of(pixels), label) for pixels, label in zip(PIXELS, labels, strict=True)], **kwargs)


def make(train: Any, test: Any = None, **kwargs: Any) -> TaskSequence:
    return TaskSequence.from_datasets(train, listed() if test is None else test, **{"num_tasks": 2, **kwargs})


def message_of(train: Any, test: Any = None, **kwargs: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        make(train, test, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def chw(pixels: Any) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize(
    "image_of",
    [
        Image.fromarray,
        lambda pixels: pixels,
        chw,
        lambda pixels: tv_tensors.Image(chw(pixels)),
        lambda pixels: chw(pixels) / 255,
        lambda pixels: pixels / 255,
        v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
        lambda pixels: Image.fromarray(pixels).convert("RGBA"),
    ],
    ids=["PIL", "array", "tensor", "tv_tensor", "ToTensor", "array / 255", "ToDtype", "opaque RGBA"],
)
def test_an_image_of_any_kind_is_read_exactly(image_of: Callable[[Any], Any]) -> None:
    data = make(listed(image_of))
    data.setup("fit")

    assert torch.equal(data.train_set.images, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert torch.equal(data.test_set.images, data.train_set.images)
    assert data.train_set.labels.tolist() == LABELS
    assert data.training_samples(1).labels.tolist() == [2, 3] * 3


@pytest.mark.parametrize("label_of", [numpy.int64, torch.tensor, lambda label: numpy.array([label])])
def test_a_label_may_be_an_array_of_one_number(label_of: Callable[[int], Any]) -> None:
    _, labels = make(listed(labels=[label_of(label) for label in LABELS])).load(train=True)
    assert (labels.tolist(), labels.dtype) == (LABELS, torch.int64)


def test_each_sample_is_read_once_and_a_few_again() -> None:
    train = Listed([(torch.zeros(1, 2, 2, dtype=torch.uint8), index % 4) for index in range(50)])
    make(train, Listed(train.samples))
    assert min(train.reads) == 1
    assert sum(train.reads) <= 58


def grey(pixels: Any) -> Image.Image:
    return Image.fromarray(pixels).convert("L")


@pytest.mark.parametrize("image_of", [grey, lambda pixels: numpy.array(grey(pixels)), lambda p: chw(p)[0]])
def test_grey_images_stay_grey(image_of: Callable[[Any], Any]) -> None:
    dataset = listed(image_of)
    data = make(dataset, dataset)
    assert data.load(train=True)[0].shape == (12, 1, 6, 5)
    assert len(data.mean) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_grey_among_rgb_becomes_rgb(first: int) -> None:
    samples = [((grey if index % 2 == first else Image.fromarray)(PIXELS[index]), LABELS[index]) for index in range(12)]
    images, _ = make(Listed(samples)).load(train=True)

    expected = numpy.stack([numpy.asarray(image.convert("RGB")) for image, _ in samples])
    assert numpy.array_equal(images.permute(0, 2, 3, 1).numpy(), expected)


def test_torchvisions_folder_gives_the_data_of_ours(tree: Path) -> None:
    splits = [ImageFolder(str(tree / split)) for split in ("train", "test")]
    data, expected = make(*splits), SplitImageFolder(str(tree), num_tasks=2)
    for sequence in (data, expected):
        sequence.setup("fit")

    assert data.data_record() == expected.data_record()
    assert data.label_names() == ["ant", "bee", "cat", "dog"]
    assert difference(vars(data.train_set), vars(expected.train_set)) is None


def test_images_are_resized_as_those_of_a_folder(tree: Path) -> None:
    Image.new("RGB", (9, 3), (1, 200, 3)).save(tree / "train/ant/1.png")
    splits = [ImageFolder(str(tree / split)) for split in ("train", "test")]
    expected = SplitImageFolder(str(tree), num_tasks=2, image_size=4).load(train=True)[0]

    assert message_of(*splits) == (
        "all images must have one size, but train[1] is 9x3 and train[0] is 5x6: give an image_size to resize them to"
    )
    assert torch.equal(make(*splits, image_size=4).load(train=True)[0], expected)
    arrays = Listed([(numpy.asarray(image), label) for image, label in splits[0]])
    tensors = Listed([(chw(numpy.array(image)) / 255, label) for image, label in splits[0]])
    for dataset in (arrays, tensors):
        assert torch.equal(make(dataset, splits[1], image_size=4).load(train=True)[0], expected)


def test_rows_of_hugging_face_are_read_with_their_names() -> None:
    datasets = pytest.importorskip("datasets")
    names = ["ant", "bee", "cat", "dog"]
    images = [Image.fromarray(pixels) for pixels in PIXELS]
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=names))
    rows = datasets.Dataset.from_dict({"img": images, "label": LABELS}, features=features)
    for dataset in (rows, rows.with_format("torch"), rows.with_format("numpy")):
        data = make(dataset, rows)
        assert torch.equal(data.load(train=True)[0], torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
        assert data.label_names() == names

    several = datasets.DatasetDict(train=rows, test=rows)
    assert message_of(several).endswith("got DatasetDict: choose one of train, test")
    renamed = rows.rename_column("label", "fine_label")
    assert "a column label or labels, got img, fine_label: name them by" in message_of(renamed)


def test_names_are_those_given_or_of_the_datasets() -> None:
    assert make(listed(classes=["a", "b", "c", "d"])).label_names() == ["a", "b", "c", "d"]
    assert make(listed(), listed(classes=("a", "b", "c", "d"))).label_names() == ["a", "b", "c", "d"]
    synonyms = [("tench", "Tinca tinca"), ("goldfish",), ("shark",), ("ray",)]  # as torchvision's ImageNet has them
    assert make(listed(classes=synonyms)).label_names() == ["tench", "goldfish", "shark", "ray"]
    part = Subset(listed(classes=["a", "b", "c", "d"]), range(8))  # type: ignore[arg-type]
    assert make(part).label_names() == ["a", "b", "c", "d"]
    assert make(listed(classes=["a", "b", "c", "d"]), class_names="wxyz").label_names() == ["w", "x", "y", "z"]
    assert make(listed(classes=4)).label_names() is None


def test_classes_in_another_order_are_refused() -> None:
    train, test = listed(classes=["a", "b", "c", "d"]), listed(classes=["a", "b", "d", "c"])
    assert message_of(train, test).endswith("the same classes in the same order, got 'c' and 'd' for class 2")
    assert message_of(train, listed(classes=["a", "b", "c"])).endswith("got 4 and 3 names")


UNUSABLE = [
    ((Image.fromarray(PIXELS[0]), "cat"), "its label must be an integer, the class counted from 0, got 'cat'"),
    ((Image.fromarray(PIXELS[0]), 1.0), "its label must be an integer, the class counted from 0, got 1.0"),
    ((Image.fromarray(PIXELS[0]), True), "its label must be an integer, the class counted from 0, got True"),
    ((Image.fromarray(PIXELS[0]), -1), "its label must be the class counted from 0, got -1"),
    ((Image.fromarray(PIXELS[0]), torch.eye(4)[0]), "its label must be one number, got an array of shape (4,)"),
    ((Image.fromarray(PIXELS[0]), 0, 7), "a sample must be (image, label), got tuple of 3"),
    (Image.fromarray(PIXELS[0]), "a sample must be (image, label), got Image"),
    (("a.png", 0), "its image must be a PIL image, a tensor or an array, got str"),
    ((torch.from_numpy(PIXELS[0]), 0), "must be a tensor (channels, height, width), got the shape (6, 5, 3)"),
    ((PIXELS[0].transpose(2, 0, 1), 0), "must be an array (height, width, channels), got the shape (3, 6, 5)"),
    ((PIXELS[:2], 0), "must be an array (height, width, channels), got the shape (2, 6, 5, 3)"),
    ((chw(PIXELS[0]) / 255 * 0.9, 0), "got float32 in [0, 0.8"),
    ((chw(PIXELS[0]) / 127.5 - 1, 0), "leave normalising and augmenting to the sequence"),
    (
        (chw(PIXELS[0]).float(), 0),
        "or floats k/255 as ToTensor makes them, got float32 in [0, 248]: convert it to uint8",
    ),
    ((chw(PIXELS[0]) * torch.nan, 0), "got float32 in [nan, nan]"),
    ((PIXELS[0].astype(numpy.int64), 0), "got int64 in [0, 248]: convert it to uint8"),
    ((PIXELS[0] > 9, 0), "its image must have uint8 values, got bool of shape (6, 5, 3)"),
    ((Image.fromarray(PIXELS[0, ..., 0].astype(numpy.int32)), 0), "must have 8 bits per channel, got mode I"),
    ({"pixel_values": PIXELS[0], "label": 0}, "a column image or img and a column label or labels, got pixel_values"),
]


@pytest.mark.parametrize(("sample", "reason"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_a_sample_that_cannot_be_used_is_named_with_the_reason(sample: Any, reason: str) -> None:
    dataset = listed()
    train = Listed([*dataset.samples[:3], sample, *dataset.samples[4:]])

    message = message_of(train)
    assert message.startswith("cannot use train[3]: ")
    assert reason in message
    assert message_of(dataset, train).startswith("cannot use test[3]: ")


@pytest.mark.parametrize(
    ("labels", "kwargs", "expected"),
    [
        ([1, 2, 3, 4] * 3, {}, "every class from 0 to 4, but has none of 0: labels count from 0, subtract 1"),
        ([0, 1, 2, 9] * 3, {}, "every class from 0 to 9, but has none of 3, 4, 5, 6, 7, 8"),
        ([0, 1, 2, 20] * 3, {}, "has none of 3, 4, 5, 6, 7, 8, ..."),
        ([0, 1, 2, 4] * 3, {"class_names": "abcd"}, "labels must be from 0 to 3, one for each name, got 4"),
        (LABELS, {"class_names": "abcdef"}, "every class from 0 to 5, but has none of 4, 5"),
    ],
)
def test_labels_with_gaps_are_refused(labels: list[int], kwargs: dict[str, Any], expected: str) -> None:
    assert expected in message_of(listed(labels=labels), **kwargs)


@pytest.mark.parametrize("kind", [DataLoader(listed()), iter([]), None])  # type: ignore[arg-type,var-annotated]
def test_what_is_no_map_style_dataset_is_refused(kind: Any) -> None:
    assert message_of(kind).startswith("train must be a dataset with a length and samples by number, got ")


def test_a_dataset_without_samples_is_refused() -> None:
    assert message_of(Listed([])) == "train must have samples, got none"
    assert message_of(listed(), Listed([])) == "test must have samples, got none"


def test_a_transform_of_the_dataset_is_applied_unless_it_is_random() -> None:
    def fake(transform: Any) -> FakeData:
        return FakeData(12, (3, 8, 8), num_classes=2, transform=transform)

    images, _ = make(fake(v2.Grayscale()), fake(v2.Grayscale())).load(train=True)
    assert images.shape == (12, 1, 8, 8)
    message = message_of(fake(v2.RandomCrop(8, padding=4)), fake(None))
    assert message.startswith("train[0] changes from one reading to the next, so its transform is random")


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"mean": [0.5], "std": [0.5]}, "mean and std must be of 3 channels, got 1"),
        ({"transform": ImageTransform((0.5,), (0.5,))}, "transform must be of 3 channels, got 1"),
        ({"mean": [0.5] * 3, "std": [0.5]}, "mean and std must have a number for each channel, got 3 and 1"),
        ({"image_size": 0}, "image_size must be positive, got 0"),
        ({"num_tasks": 3}, "num_tasks must divide the 4 classes of SplitDataset, got 3"),
    ],
)
def test_invalid_arguments_are_refused(kwargs: dict[str, Any], expected: str) -> None:
    assert expected in message_of(listed(), **kwargs)


def test_a_transform_of_ones_own_is_used() -> None:
    transform = ImageTransform((0.5,) * 3, (0.5,) * 3)
    assert make(listed(), transform=transform).transform is transform
    data = make(listed(), flip=False, padding=1, name="mine")
    assert (data.transform.flip, data.transform.padding, data.name) == (False, 1, "mine")


def er() -> ReplayMethod:
    return ER(SmallNet(in_channels=3, width=2), num_classes=4, buffer_size=4)


def named(**kwargs: Any) -> TaskSequence:
    return make(listed(classes=["a", "b", "c", "d"]), batch_size=2, **kwargs)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_it_resumes_loads_and_spreads_over_ranks_like_the_others(fit: Fit, tmp_path: Path) -> None:
    whole = fit(er, named())
    stopped = fit(er, named(), max_steps=4)
    stopped.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    resumed = fit(er, named(), ckpt_path=tmp_path / "stopped.ckpt")
    two = fit(er, named(), devices=2, strategy="ddp_fork")
    resumed.trainer.save_checkpoint(tmp_path / "trained.ckpt")
    loaded = ddn_lightning.load(tmp_path / "trained.ckpt")

    assert difference(dict(resumed.state_dict()), dict(whole.state_dict())) is None
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(two.parameters(), whole.parameters(), strict=True))
    assert loaded.class_names == tuple("abcd")
    images, _ = named().load(train=False)
    assert torch.equal(loaded.predict(images).probabilities, whole.predict(images).probabilities)


def test_other_data_is_noticed_by_a_resumed_run_and_an_evaluation(fit: Fit, tmp_path: Path) -> None:
    fit(er, named(), max_steps=4).trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    other = listed(labels=LABELS[::-1], classes=["a", "b", "c", "d"])
    with pytest.raises(ConfigurationError, match="the train images must be those of the checkpoint"):
        fit(er, make(other, batch_size=2), ckpt_path=tmp_path / "stopped.ckpt")
    with pytest.raises(ConfigurationError, match="the train images must be those.*set data.mean and data.std"):
        quiet_trainer().test(er(), make(other, batch_size=2), ckpt_path=tmp_path / "stopped.ckpt")
    given = {"mean": [0.5] * 3, "std": [0.3] * 3}
    quiet_trainer().test(er(), make(other, batch_size=2, **given), ckpt_path=tmp_path / "stopped.ckpt", verbose=False)


def test_from_datasets_makes_one_from_any_class() -> None:
    assert type(SplitImageFolder.from_datasets(listed(), listed(), num_tasks=4)) is SplitDataset


def test_the_default_name_of_a_run_is_known_before_its_data_is_built() -> None:
    data, model = (
        Namespace(class_path="ddn_lightning.data.split_dataset.SplitDataset"),
        Namespace(class_path="x.ER", init_args={"distiller": None}),
    )
    config = Namespace(data=data, model=model, seed_everything=0, grow=None)
    assert default_name(config) == "er-dataset-seed0"


def test_the_columns_of_rows_can_be_named() -> None:
    rows = Listed([{"pixel_values": chw(pixels), "fine": n} for pixels, n in zip(PIXELS, LABELS, strict=True)])
    found = make(rows, rows, image="pixel_values", label="fine").load(train=True)
    expected = make(listed()).load(train=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    expected_message = "a row must have a column image or img and a column fine, got pixel_values, fine: name them by"
    assert expected_message in message_of(rows, rows, label="fine")


def test_an_own_augmentation_replaces_crop_and_flip() -> None:
    sequence = make(listed(), transform=v2.RandomHorizontalFlip(1.0))
    raw = sequence.load(train=True)[0]
    augmented = sequence.transform(raw, torch.Generator())
    assert torch.equal(augmented, sequence.transform(raw.flip(-1)))
