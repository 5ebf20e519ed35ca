import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy
import pytest
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ddn_lightning.data import decoding
from ddn_lightning.data.split_cifar import SplitCIFAR10, SplitCIFAR100
from ddn_lightning.errors import ConfigurationError

DATASETS = [(SplitCIFAR10, torchvision.datasets.CIFAR10), (SplitCIFAR100, torchvision.datasets.CIFAR100)]
Pixels = NDArray[numpy.uint8]


@pytest.fixture(autouse=True)
def any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchvision accept our small files in place of the official ones."""
    for _, original in DATASETS:
        for split in ("train_list", "test_list"):
            monkeypatch.setattr(original, split, [[name, None] for name, _ in getattr(original, split)])
        monkeypatch.setattr(original, "meta", {**original.meta, "md5": None})


def write_batches(
    root: Path, original: type[torchvision.datasets.CIFAR10], num_classes: int
) -> tuple[Tensor, list[int]]:
    """Files in torchvision's own layout, one image per class in each; returns the test images and labels."""
    generator = numpy.random.default_rng(0)
    folder = root / original.base_folder
    folder.mkdir(parents=True)
    for name, _ in original.train_list + original.test_list:
        pixels = generator.integers(0, 256, (num_classes, 3 * 32 * 32), dtype=numpy.uint8)
        labels = generator.permutation(num_classes).tolist()
        fields = {"labels": labels} if num_classes == 10 else {"fine_labels": labels, "coarse_labels": [0] * 100}
        (folder / name).write_bytes(pickle.dumps({"data": pixels, **fields}))
    names = [f"class_{index:02}" for index in range(num_classes)]
    (folder / original.meta["filename"]).write_bytes(pickle.dumps({original.meta["key"]: names}))
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), labels


def write_tree(root: Path, names: Sequence[str], size: int = 32) -> Tensor:
    """One training and one test image of each class; returns the test images."""
    generator = numpy.random.default_rng(1)
    images = []
    for split in ("train", "test"):
        for name in names:
            pixels = generator.integers(0, 256, (size, size, 3), dtype=numpy.uint8)
            folder = root / split / name
            folder.mkdir(parents=True)
            Image.fromarray(pixels).save(folder / "0.png")
            images.append(torch.from_numpy(pixels).permute(2, 0, 1))
    return torch.stack(images[len(names) :])


@pytest.mark.parametrize(("split_class", "original"), DATASETS)
def test_torchvisions_files_are_read_exactly(
    tmp_path: Path, split_class: type[SplitCIFAR10] | type[SplitCIFAR100], original: type[torchvision.datasets.CIFAR10]
) -> None:
    images, labels = write_batches(tmp_path, original, split_class.num_classes)
    data = split_class(str(tmp_path))
    data.prepare_data()
    data.setup("fit")

    assert torch.equal(data.test_set.images, images)
    assert data.test_set.images.is_contiguous()
    assert data.test_set.labels.dtype == torch.int64
    assert data.test_set.labels.tolist() == labels
    assert len(data.train_set) == split_class.num_classes * len(original.train_list)
    first = pickle.loads((tmp_path / original.base_folder / original.train_list[0][0]).read_bytes())
    assert torch.equal(data.train_set.images[0], torch.from_numpy(first["data"][0]).view(3, 32, 32))


@pytest.mark.parametrize("split_class", [SplitCIFAR10, SplitCIFAR100])
def test_a_tree_is_read_and_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_class: type[SplitCIFAR10] | type[SplitCIFAR100]
) -> None:
    images = write_tree(tmp_path, split_class.class_names)
    split_class(str(tmp_path)).prepare_data()

    def decode_image(path: str, image_size: int | None) -> Pixels:
        raise AssertionError(f"{path} was decoded again")

    monkeypatch.setattr(decoding, "decode_image", decode_image)
    data = split_class(str(tmp_path))
    data.prepare_data()
    data.setup("fit")

    assert torch.equal(data.test_set.images, images)
    assert data.test_set.labels.tolist() == list(range(split_class.num_classes))
    assert len(data.train_set) == split_class.num_classes


@pytest.mark.parametrize(("split_class", "num_tasks"), [(SplitCIFAR10, 5), (SplitCIFAR100, 10)])
def test_default_tasks_and_statistics(split_class: type[SplitCIFAR10] | type[SplitCIFAR100], num_tasks: int) -> None:
    data = split_class()

    assert data.task_classes.tolist() == torch.arange(data.num_classes).view(num_tasks, -1).tolist()
    red = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    expected = [(1 - mean) / std for mean, std in zip(data.mean, data.std, strict=True)]
    assert data.transform(red).flatten().tolist() == pytest.approx(expected, abs=1e-5)
    assert (data.transform.padding, data.transform.flip) == (4, True)


def test_torchvisions_files_come_before_a_tree(tmp_path: Path) -> None:
    write_tree(tmp_path, SplitCIFAR10.class_names)
    images, _ = write_batches(tmp_path, torchvision.datasets.CIFAR10, 10)

    assert torch.equal(SplitCIFAR10(str(tmp_path)).load(train=False)[0], images)


@pytest.mark.parametrize("call", ["prepare_data", "load"])
def test_missing_files_are_reported_with_a_remedy(tmp_path: Path, call: str) -> None:
    data = SplitCIFAR10(str(tmp_path / "nowhere"))

    with pytest.raises(ConfigurationError, match=f"CIFAR10 in {tmp_path}/nowhere.*download=True.*train/<class>/"):
        data.prepare_data() if call == "prepare_data" else data.load(train=True)
    assert not (tmp_path / "nowhere").exists()


def test_an_incomplete_tree_is_not_read(tmp_path: Path) -> None:
    write_tree(tmp_path, SplitCIFAR10.class_names)
    shutil.rmtree(tmp_path / "test")

    with pytest.raises(ConfigurationError, match=f"expected CIFAR10 in {tmp_path}"):
        SplitCIFAR10(str(tmp_path)).prepare_data()


def test_damaged_files_are_reported(tmp_path: Path) -> None:
    write_batches(tmp_path, torchvision.datasets.CIFAR100, 100)
    (tmp_path / "cifar-100-python/train").unlink()

    with pytest.raises(ConfigurationError, match=f"CIFAR100 in {tmp_path}.*cifar-100-python.*damaged"):
        SplitCIFAR100(str(tmp_path)).prepare_data()


@pytest.mark.parametrize(("split_class", "found"), [(SplitCIFAR10, 9), (SplitCIFAR100, 10)])
def test_a_tree_with_another_number_of_classes_is_refused(
    tmp_path: Path, split_class: type[SplitCIFAR10] | type[SplitCIFAR100], found: int
) -> None:
    write_tree(tmp_path, split_class.class_names[:found])

    expected = f"{tmp_path} must have a folder for each of the {split_class.num_classes} classes .* but has {found}"
    with pytest.raises(ConfigurationError, match=expected):
        split_class(str(tmp_path)).prepare_data()


@pytest.mark.parametrize("split_class", [SplitCIFAR10, SplitCIFAR100])
def test_folders_named_by_number_are_in_the_order_of_the_numbers(
    tmp_path: Path, split_class: type[SplitCIFAR10] | type[SplitCIFAR100]
) -> None:
    images = write_tree(tmp_path, [str(label) for label in range(split_class.num_classes)])
    data = split_class(str(tmp_path))
    data.setup("test")
    assert torch.equal(data.test_set.images, images)
    assert data.test_set.labels.tolist() == list(range(split_class.num_classes))


def test_folders_with_unknown_class_names_are_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, ["plane", "car", *SplitCIFAR10.class_names[2:]])
    with pytest.raises(ConfigurationError, match=r"named by class \(airplane, .* among them \['car', 'plane'\]"):
        SplitCIFAR10(str(tmp_path)).prepare_data()


@pytest.mark.parametrize("split_class", [SplitCIFAR10, SplitCIFAR100])
def test_the_official_names_are_in_alphabetical_order(split_class: type[SplitCIFAR10] | type[SplitCIFAR100]) -> None:
    assert split_class.class_names == sorted(set(split_class.class_names))
    assert len(split_class.class_names) == split_class.num_classes


def test_a_tree_with_images_of_another_size_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, SplitCIFAR10.class_names, size=28)

    with pytest.raises(ConfigurationError, match=f"must be 32x32, but those in {tmp_path}/test are 28x28"):
        SplitCIFAR10(str(tmp_path)).setup("test")


@pytest.mark.parametrize(("split_class", "original"), DATASETS)
def test_prepare_data_downloads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split_class: type[SplitCIFAR10] | type[SplitCIFAR100],
    original: type[torchvision.datasets.CIFAR10],
) -> None:
    downloads = []

    def fetch(url: str, root: Path, filename: str, md5: str) -> None:
        downloads.append(url)
        write_batches(tmp_path, original, split_class.num_classes)

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fetch)
    data = split_class(str(tmp_path), download=True)
    data.prepare_data()
    data.setup("test")
    data.prepare_data()

    assert downloads == [original.url]
    assert len(data.test_set) == split_class.num_classes


def test_a_tree_is_not_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*arguments: Any, **kwargs: Any) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fetch)
    images = write_tree(tmp_path, SplitCIFAR10.class_names)
    data = SplitCIFAR10(str(tmp_path), download=True)
    data.prepare_data()
    data.setup("test")

    assert torch.equal(data.test_set.images, images)


def test_a_failed_download_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*arguments: Any, **kwargs: Any) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fetch)

    with pytest.raises(ConfigurationError, match=f"cannot download CIFAR10 to {tmp_path}: .*no network"):
        SplitCIFAR10(str(tmp_path), download=True).prepare_data()
