"""The cache returns the current images, or is rebuilt."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor

from ddn_lightning.data.split_image_folder import SplitImageFolder


def load(root: Path, train: bool = True, **kwargs: Any) -> Tensor:
    return SplitImageFolder(str(root), num_tasks=2, **kwargs).load(train)[0]


def cache_files(root: Path, split: str = "train") -> list[Path]:
    return sorted((root / ".ddn_cache").glob(f"{split}*"))


def flip_a_byte(cache: Path) -> None:
    content = bytearray(cache.read_bytes())
    content[-50] ^= 1
    cache.write_bytes(content)


def fill_with_zeros(cache: Path) -> None:
    content = cache.read_bytes()
    cache.write_bytes(content[:128] + bytes(len(content) - 128))


def put_images_of_another_size(cache: Path) -> None:
    numpy.save(cache, numpy.zeros((8, 3, 4, 4), dtype=numpy.uint8))


def put_the_cache_of_another_size(cache: Path) -> None:
    load(cache.parent.parent, image_size=4)
    (other,) = cache.parent.glob("train-4-*")
    shutil.copy(other, cache)


def put_other_images(cache: Path) -> None:
    numpy.save(cache, numpy.zeros((8, 3, 6, 5), dtype=numpy.uint8))


def put_a_cache_of_other_images(cache: Path) -> None:
    """As many, of the same size, under their own checksum: but not those that the name stands for."""
    other = cache.parent.parent.with_name("other")
    shutil.copytree(cache.parent.parent, other, ignore=shutil.ignore_patterns(".ddn_cache"))
    Image.new("RGB", (5, 6)).save(other / "train/ant/0.png")
    load(other)
    shutil.copy(*cache_files(other), cache)


def change_the_order_of_the_pixels(cache: Path) -> None:
    cache.write_bytes(cache.read_bytes().replace(b"'fortran_order': False", b"'fortran_order': True ", 1))


DAMAGES = [
    flip_a_byte,
    fill_with_zeros,
    put_images_of_another_size,
    put_the_cache_of_another_size,
    put_other_images,
    put_a_cache_of_other_images,
    change_the_order_of_the_pixels,
]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_decoded_again_with_a_note(
    tree: Path, damage: Callable[[Path], None], in_memory: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = load(tree)
    (cache,) = cache_files(tree)
    whole = cache.read_bytes()
    damage(cache)
    assert cache.read_bytes() != whole
    capsys.readouterr()

    assert torch.equal(load(tree, in_memory=in_memory), expected)
    assert f"note: the cache {cache} is damaged, so its images are decoded again" in capsys.readouterr().err
    assert cache.read_bytes() == whole
    load(tree, in_memory=in_memory)
    assert "note" not in capsys.readouterr().err


def replace_by_renaming(new: Path, old: Path) -> None:
    new.rename(old)


def overwrite(new: Path, old: Path) -> None:
    status = old.stat()
    old.write_bytes(new.read_bytes())
    os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("put", [replace_by_renaming, overwrite])
def test_an_image_of_the_same_length_and_time_of_change_is_noticed(
    tree: Path, put: Callable[[Path, Path], None]
) -> None:
    old, new = tree / "train/ant/0.png", tree / "new.bmp"
    Image.new("RGB", (5, 6), (1, 2, 3)).save(old, format="BMP")
    load(tree)
    Image.new("RGB", (5, 6), (9, 8, 7)).save(new)
    status = old.stat()
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert new.stat().st_size == status.st_size
    put(new, old)  # as rsync -t and cp -p do
    assert old.stat().st_mtime_ns == status.st_mtime_ns

    assert load(tree)[0, :, 0, 0].tolist() == [9, 8, 7]


def test_caches_of_two_image_sizes_coexist(tree: Path, decoded: list[str]) -> None:
    first = [load(tree, image_size=size) for size in (4, 3, None)]
    decoded.clear()
    second = [load(tree, image_size=size) for size in (4, 3, None)]

    assert not decoded
    assert [images.shape[-1] for images in second] == [4, 3, 5]
    assert all(map(torch.equal, first, second))


def test_only_the_outdated_cache_of_the_same_size_is_removed(tree: Path) -> None:
    for size in (4, 3):
        load(tree, image_size=size)
    outdated = cache_files(tree)
    format_1 = tree / ".ddn_cache" / f"train-{'0' * 64}.npy"  # as version 0.1 named it
    format_1.touch()
    Image.new("RGB", (5, 6)).save(tree / "train/ant/0.png")
    load(tree, image_size=4)

    assert not format_1.exists()
    of_size_3, of_size_4 = cache_files(tree)
    assert of_size_3 == outdated[0]
    assert of_size_4 != outdated[1]
