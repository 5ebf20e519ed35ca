"""Images that are not held in memory are those that are, read from a file when a batch needs them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from PIL import Image
from torch import Tensor

from ddn_lightning import ConfigurationError, DERPlusPlus, ReplayMethod, SmallNet, SplitImageFolder
from ddn_lightning.data import decoding, image_reader
from ddn_lightning.data.image_reader import ImageReader
from ddn_lightning.data.image_tree import tree_images
from ddn_lightning.data.plan import PlannedSamples

CLASSES = ("ant", "bee", "cat", "dog")
STATUS = Path("/proc/self/status")
needs_proc = pytest.mark.skipif(not STATUS.exists(), reason="Linux tells which memory is a file's")


def sequence(tree: Path, **kwargs: Any) -> SplitImageFolder:
    return SplitImageFolder(str(tree), **{"num_tasks": 2, "image_size": 8, "batch_size": 2, **kwargs})


def is_mapped(images: Tensor) -> bool:
    """Whether the memory of a tensor is a cache file's."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= images.data_ptr() < high:
            return ".ddn_cache" in name
    raise AssertionError("not in memory at all")


def own_memory() -> int:
    """Bytes of this process that are in no file."""
    rows = dict(line.split(":") for line in STATUS.read_text().splitlines())
    return int(rows["RssAnon"].removesuffix("kB")) * 1024


def derpp() -> ReplayMethod:
    return DERPlusPlus(SmallNet(in_channels=3, width=2), num_classes=4, buffer_size=4)


@needs_proc
def test_mapped_images_train_to_the_same_numbers_bit_for_bit(tree: Path, fit: Callable[..., ReplayMethod]) -> None:
    trained = []
    for in_memory in (True, False):
        data = sequence(tree, in_memory=in_memory, class_order_seed=3, epochs_per_task=2)
        trained.append(fit(derpp, data))
        assert is_mapped(data.train_set.images) is is_mapped(data.test_set.images) is not in_memory
        assert len(data.training_samples(1)) == 4
    held, mapped = trained

    assert held.sequence.data_record() == mapped.sequence.data_record()
    assert difference(dict(held.state_dict()), dict(mapped.state_dict())) is None
    assert difference(held.accuracy_matrix, mapped.accuracy_matrix) is None
    slots = torch.arange(4)
    assert difference(vars(held.memory[slots]), vars(mapped.memory[slots])) is None


@needs_proc
def test_memory_grows_with_a_batch_not_with_the_images(tree: Path) -> None:
    for path in (tree / "train").rglob("0.png"):
        for copy in range(9):
            os.link(path, path.with_name(f"copy {copy}.png"))
    arguments: dict[str, Any] = {"image_size": 512, "in_memory": False, "class_order_seed": 3}
    sequence(tree, **arguments).prepare_data()
    data = sequence(tree, **arguments)

    data.setup("fit")  # measures the images, a few at a time, and keeps up to 30 MiB of freed memory
    assert is_mapped(data.train_set.images)
    before, most = own_memory(), 0
    for task in range(2):
        samples = data.training_samples(task)
        for batch in torch.split(torch.randperm(len(samples)), 2):
            assert len(samples[batch].images) == 2
            most = max(most, own_memory() - before)

    assert len(data.train_set) == 44
    assert most < 44 * 3 * 512**2 / 3  # 11 MiB; one copy of a task would be 16


def test_decoding_holds_a_few_chunks_at_a_time(tree: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK_SIZE", 1)
    monkeypatch.setattr(decoding, "CHUNKS_AHEAD", 2)
    files = tree_images(str(tree), "train", CLASSES)
    for number, _ in enumerate(decoding.decode_chunks(files, 8, "Decoding"), 1):
        assert len(decoded) <= number + 2
    assert sorted(decoded) == [file.path for file in files]


def test_ranks_and_runs_may_decode_to_the_file_at_once(tree: Path) -> None:
    files = tree_images(str(tree), "train", CLASSES)
    expected = ImageReader(str(tree), cache_dir="elsewhere").read("train", files)[0]
    with ThreadPoolExecutor(8) as pool:
        read = pool.map(lambda _: ImageReader(str(tree), in_memory=False).read("train", files)[0], range(16))

        assert all(torch.equal(images, expected) for images in read)
    assert len(list((tree / ".ddn_cache").iterdir())) == 1


def test_a_replaced_cache_does_not_change_the_images_of_a_run(tree: Path) -> None:
    images = sequence(tree, in_memory=False).load(train=True)[0]
    before = images.clone()
    for path in (tree / "train").rglob("*.png"):
        Image.new("RGB", (5, 6)).save(path)

    assert not sequence(tree, in_memory=False).load(train=True)[0].any()  # written anew, the old file is removed
    assert torch.equal(images, before)


@needs_proc
@pytest.mark.parametrize("most", [10**4, 10**3])
def test_auto_maps_a_split_of_more_than_the_limit(tree: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(image_reader, "MOST_HELD", most)
    for _ in range(2):  # decoded, and from the cache
        images, _ = sequence(tree).load(train=True)
        assert images.numel() == 8 * 3 * 8**2  # 1,536
        assert is_mapped(images) is (most == 10**3)


def refuse(*arguments: Any, **kwargs: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_without_room_for_the_file_the_reason_and_the_option_are_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", refuse)
    expected = f"which cannot be written in {tree}/.ddn_cache .*Permission denied.*: set cache_dir to another folder"
    with pytest.raises(ConfigurationError, match=expected):
        sequence(tree, in_memory=False).prepare_data()
    with pytest.warns(UserWarning, match="cannot write a cache"):
        assert sequence(tree).load(train=True)[0].shape == (8, 3, 8, 8)


def test_images_are_kept_in_the_folder_given(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence(tree, in_memory=False, cache_dir="large disk").prepare_data()

    assert not (tree / ".ddn_cache").exists()
    assert len(list(Path("large disk").rglob("*.npy"))) == 2


def test_another_value_of_in_memory_is_refused(tree: Path) -> None:
    with pytest.raises(ConfigurationError, match="in_memory must be true, false or auto, got 'no'"):
        sequence(tree, in_memory="no")


@needs_proc
def test_a_validation_split_of_mapped_images_is_mapped_and_keeps_their_mean_and_std(tree: Path) -> None:
    whole, split = (sequence(tree, in_memory=False, validation_per_class=number) for number in (None, 1))
    for data in (whole, split):
        data.setup("fit")
    for samples in (split.train_set, split.val_set):
        assert isinstance(samples, PlannedSamples)
        assert is_mapped(samples.source)
        assert len(samples) == 4
    assert (split.mean, split.std) == (whole.mean, whole.std)  # of all training images
