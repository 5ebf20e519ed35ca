"""Benchmarks by their names, on a few generated images in the layout of the original files."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
import torchvision
import yaml
from PIL import Image
from scipy.io import savemat

from ddn_lightning import (
    ConfigurationError,
    SplitCLEAR10,
    SplitCORe50NC,
    SplitCORe50NI,
    SplitCUB200,
    SplitImageNet100,
    SplitMiniImageNet,
    SplitTorchvision,
    TaskSequence,
)
from ddn_lightning.cli import main
from ddn_lightning.data import split_listed_images

CONFIGS = Path(__file__).parents[2] / "configs"


def write_idx(path: Path, values: numpy.ndarray) -> None:
    """A file in the format of MNIST: a magic number, the sizes, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(numpy.uint8).tobytes())


def write_image(path: Path, value: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numpy.full((size, size, 3), value, dtype=numpy.uint8)).save(path)


def loaded(data: TaskSequence) -> tuple[TaskSequence, list[list[int]], list[list[int]]]:
    """The set-up data, and the labels of the training and of the test images of each task."""
    data.prepare_data()
    data.setup("fit")
    parts = []
    for split in (data.train_set, data.test_set):
        assert split.tasks is not None
        parts.append([split.labels[split.tasks == task].tolist() for task in range(data.num_tasks)])
    return data, *parts


@pytest.mark.parametrize(
    ("name", "folder", "files"),
    [
        ("mnist", "MNIST", ["train-{}", "t10k-{}"]),
        ("fashion_mnist", "FashionMNIST", ["train-{}", "t10k-{}"]),
        ("emnist_letters", "EMNIST", ["emnist-letters-train-{}", "emnist-letters-test-{}"]),
    ],
)
def test_files_of_the_mnist_family(tmp_path: Path, name: str, folder: str, files: Sequence[str]) -> None:
    number = 26 if "letters" in name else 10
    pixels = numpy.random.default_rng(0).integers(0, 256, (number, 28, 28), dtype=numpy.uint8)
    labels = numpy.arange(number) + ("letters" in name)
    for file in files:
        raw = tmp_path / folder / "raw"
        write_idx(raw / file.format("images-idx3-ubyte"), pixels)
        write_idx(raw / file.format("labels-idx1-ubyte"), labels)
    data, train, test = loaded(SplitTorchvision(name, str(tmp_path), batch_size=2))
    assert train == test == [[2 * task, 2 * task + 1] for task in range(number // 2)]
    upright = pixels.transpose(0, 2, 1) if "letters" in name else pixels
    assert torch.equal(data.train_set.images[:, 0], torch.from_numpy(upright.copy()))
    assert data.label_names()[0] == {"mnist": "0", "fashion_mnist": "T-shirt/top", "emnist_letters": "a"}[name]


def test_files_of_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = torchvision.datasets.SVHN
    listed = {split: [url, file, None] for split, (url, file, _) in original.split_list.items()}
    monkeypatch.setattr(original, "split_list", listed)
    pixels = numpy.random.default_rng(0).integers(0, 256, (32, 32, 3, 10), dtype=numpy.uint8)
    for split in ("train", "test"):
        savemat(tmp_path / f"{split}_32x32.mat", {"X": pixels, "y": numpy.arange(1, 11)[:, None]})  # 10 stands for 0
    data, train, test = loaded(SplitTorchvision("svhn", str(tmp_path), batch_size=2))
    assert [sorted(task) for task in train] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert train == test
    zero = int((data.train_set.labels == 0).nonzero())
    assert torch.equal(data.train_set.images[zero], torch.from_numpy(pixels[..., 9].transpose(2, 0, 1).copy()))


def test_a_missing_dataset_is_refused_with_the_option_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected, as download=True fetches it, torchvision's MNIST in "):
        SplitTorchvision("mnist", str(tmp_path)).prepare_data()


@pytest.fixture
def cub(tmp_path: Path) -> Path:
    """Four species of the layout of CUB-200-2011, three images each, of which the second is for test."""
    species = ["001.Albatross", "002.Bunting", "010.Auklet", "003.Cormorant"]
    images = [f"{name}/{number}.png" for name in species for number in range(3)]
    for number, path in enumerate(images):
        write_image(tmp_path / "images" / path, 20 * number)
    numbers = range(1, len(images) + 1)
    lists = {"classes.txt": species, "images.txt": images}
    for name, values in lists.items():
        (tmp_path / name).write_text("".join(f"{number} {value}\n" for number, value in enumerate(values, 1)))
    flags = "".join(f"{number} {int(number % 3 != 2)}\n" for number in numbers)
    (tmp_path / "train_test_split.txt").write_text(flags)
    return tmp_path


def test_cub_follows_its_lists(cub: Path) -> None:
    data, train, test = loaded(SplitCUB200(str(cub), num_tasks=2, image_size=8, batch_size=2))
    assert data.class_names == ["001.Albatross", "002.Bunting", "010.Auklet", "003.Cormorant"]
    assert train == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert test == [[0, 1], [2, 3]]
    assert data.train_set.images[:, 0, 0, 0].tolist() == [0, 40, 60, 100, 120, 160, 180, 220]
    assert data.test_set.images[:, 0, 0, 0].tolist() == [20, 80, 140, 200]


def test_a_file_that_a_list_names_and_that_is_missing_is_refused(cub: Path) -> None:
    (cub / "images" / "002.Bunting" / "1.png").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot read .*1.png, which the lists name"):
        SplitCUB200(str(cub), num_tasks=2, image_size=8).prepare_data()
    (cub / "train_test_split.txt").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot read .*train_test_split.txt, a part of the dataset"):
        SplitCUB200(str(cub), num_tasks=2, image_size=8).prepare_data()


def test_mini_imagenet_takes_the_first_images_of_each_class_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_listed_images, "MINI_PER_CLASS", 3)
    monkeypatch.setattr(split_listed_images, "MINI_TRAINING", 2)
    value = 0
    for name, classes in {"train": ["n2", "n1"], "val": ["n4"], "test": ["n3"]}.items():
        rows = [f"{label}{number}.png,{label}" for label in classes for number in range(3)]
        (tmp_path / f"{name}.csv").write_text("filename,label\n" + "\n".join(rows) + "\n")
        for row in rows:
            write_image(tmp_path / "images" / row.partition(",")[0], value := value + 10)
    data, train, test = loaded(SplitMiniImageNet(str(tmp_path), num_tasks=2, image_size=8, batch_size=2))
    assert data.class_names == ["n2", "n1", "n4", "n3"]
    assert (train, test) == ([[0, 0, 1, 1], [2, 2, 3, 3]], [[0, 1], [2, 3]])
    assert data.test_set.images[:, 0, 0, 0].tolist() == [30, 60, 90, 120]
    monkeypatch.setattr(split_listed_images, "MINI_PER_CLASS", 600)
    with pytest.raises(ConfigurationError, match="must have 600 images of n2, got 3"):
        SplitMiniImageNet(str(tmp_path), num_tasks=2, image_size=8).prepare_data()


def test_imagenet_100_has_the_classes_of_seed_1993(tmp_path: Path) -> None:
    names = [f"n{number:08}" for number in range(1000)]
    order = numpy.arange(1000)
    numpy.random.RandomState(1993).shuffle(order)  # as the code of iCaRL and its followers, after seed(1993)
    chosen = order[:100].tolist()
    for number, name in enumerate(names):
        (tmp_path / "train" / name).mkdir(parents=True)
        if number in chosen:
            for split in ("train", "val"):
                write_image(tmp_path / split / name / "a.png", number % 256)
    data, train, test = loaded(SplitImageNet100(str(tmp_path), image_size=8, batch_size=2))
    assert data.class_names == [names[number] for number in chosen]
    assert train == test == [list(range(10 * task, 10 * task + 10)) for task in range(10)]
    assert data.train_set.images[:, 0, 0, 0].tolist() == [number % 256 for number in chosen]


@pytest.fixture
def core50(tmp_path: Path) -> Path:
    """One image of each object in each session, whose grey level is the session."""
    for session in range(1, 12):
        for number in range(1, 51):
            write_image(tmp_path / f"s{session}" / f"o{number}" / f"C_{session:02}_{number:02}_000.png", session)
    return tmp_path


def test_core50_new_classes_and_new_instances(core50: Path) -> None:
    data, train, test = loaded(SplitCORe50NC(str(core50), image_size=8, batch_size=2))
    assert [len(set(task)) for task in train] == [10, 5, 5, 5, 5, 5, 5, 5, 5]
    assert [len(task) for task in test] == [30] + [15] * 8
    assert data.train_set.images[:, 0, 0, 0].unique().tolist() == [1, 2, 4, 5, 6, 8, 9, 11]
    assert data.test_set.images[:, 0, 0, 0].unique().tolist() == [3, 7, 10]
    data, train, test = loaded(SplitCORe50NI(str(core50), image_size=8, batch_size=2))
    assert train == [list(range(50))] * 8
    assert data.train_set.images[:, 0, 0, 0].reshape(8, 50).unique(dim=1).flatten().tolist() == [
        1,
        2,
        4,
        5,
        6,
        8,
        9,
        11,
    ]
    assert sorted(label for task in test for label in task) == sorted(list(range(50)) * 3)
    assert [len(task) for task in test] == [19] * 6 + [18] * 2


def test_clear_has_a_task_for_each_bucket_in_their_order(tmp_path: Path) -> None:
    classes = ["BACKGROUND", "baseball", "bus"]
    for bucket in range(1, 11):
        for split, number in (("train_image_only", 2), ("test_image_only", 1)):
            for name in classes:
                for index in range(number):
                    path = tmp_path / split / "labeled_images" / str(bucket) / name / f"{index}.png"
                    write_image(path, 20 * bucket + index)
    data, train, test = loaded(SplitCLEAR10(str(tmp_path), image_size=8, batch_size=2))
    assert data.class_names == classes
    assert train == [[0, 0, 1, 1, 2, 2]] * 10
    assert test == [[0, 1, 2]] * 10
    assert (data.test_set.images[:, 0, 0, 0] // 20).tolist() == [bucket for bucket in range(1, 11) for _ in range(3)]


def test_a_shipped_file_learns_its_benchmark(core50: Path) -> None:
    """One for all: the others differ in data alone."""
    small = [
        "--data.image_size=8",
        "--model.backbone=SmallNet",
        "--model.backbone.in_channels=3",
        "--data.batch_size=5",
    ]
    options = [*small, f"--data.root={core50}", "--trainer.enable_progress_bar=false", "--name=core"]
    files = ["base.yaml", "data/core50_nc.yaml", "setting/online.yaml"]
    assert main(["fit", *[part for file in files for part in ("-c", str(CONFIGS / file))], *options]) == 0


@pytest.mark.parametrize("file", sorted((CONFIGS / "data").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_class_that_a_shipped_file_names_is_there(file: Path) -> None:
    import ddn_lightning

    settings = yaml.safe_load(file.read_text())["data"]
    assert issubclass(getattr(ddn_lightning, settings["class_path"]), TaskSequence)
