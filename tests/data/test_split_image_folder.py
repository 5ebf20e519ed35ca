import os
import pickle
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image
from torch import Tensor

from ddn_lightning.data import FewShot, RotatedImages, decoding
from ddn_lightning.data.image_reader import ImageReader
from ddn_lightning.data.image_tree import tree_classes, tree_images
from ddn_lightning.data.split_image_folder import SplitImageFolder, channel_statistics
from ddn_lightning.errors import ConfigurationError

CLASSES = ("ant", "bee", "cat", "dog")


def pixels_of(root: Path, split: str) -> Tensor:
    """What the loader should read, one image after the other."""
    paths = [path for name in CLASSES for path in sorted((root / split / name).glob("*.png"))]
    return torch.stack([torch.from_numpy(numpy.array(Image.open(path))).permute(2, 0, 1) for path in paths])


def cache_files(root: Path) -> list[Path]:
    return sorted((root / ".ddn_cache").iterdir())


def load(root: Path, train: bool = True, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return SplitImageFolder(str(root), num_tasks=2, **kwargs).load(train)


def test_splits_hold_the_images_with_their_labels_and_tasks(tree: Path) -> None:
    data = SplitImageFolder(str(tree), num_tasks=2)
    data.prepare_data()
    data.setup("fit")

    assert data.class_names == list(CLASSES)
    assert data.num_classes == 4
    assert data.train_set.images.dtype == torch.uint8
    assert torch.equal(data.train_set.images, pixels_of(tree, "train"))
    assert torch.equal(data.test_set.images, pixels_of(tree, "test"))
    assert data.train_set.labels.dtype == torch.int64
    assert data.train_set.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.test_set.labels.tolist() == [0, 1, 2, 3]
    assert data.test_set.tasks is not None
    assert data.test_set.tasks.tolist() == [0, 0, 1, 1]


def test_order_is_kept_over_many_chunks(tmp_path: Path) -> None:
    number = 2 * decoding.CHUNK_SIZE + 3
    for split in ("train", "test"):
        (tmp_path / split / "only").mkdir(parents=True)
    for index in range(number):
        Image.new("RGB", (2, 2), (index % 256, index // 256, 0)).save(tmp_path / f"train/only/{index:04}.png")
    Image.new("RGB", (2, 2)).save(tmp_path / "test/only/0.png")

    images, _ = SplitImageFolder(str(tmp_path), num_tasks=1).load(train=True)

    assert (images[:, 0, 0, 0].int() + 256 * images[:, 1, 0, 0].int()).tolist() == list(range(number))


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.bmp", "a.ppm", "a.tif", "a.TIFF", "a.webp", "a.gif"])
def test_formats_without_loss_are_read_exactly(tree: Path, name: str) -> None:
    expected = numpy.zeros((6, 5, 3), dtype=numpy.uint8)
    expected[:3] = (200, 100, 50)  # two colours, which a GIF can hold
    shutil.rmtree(tree / "test/ant")
    (tree / "test/ant").mkdir()
    options: dict[str, Any] = {"lossless": True} if name == "a.webp" else {}
    Image.fromarray(expected).save(tree / "test/ant" / name, **options)

    images, _ = load(tree, train=False)

    assert numpy.array_equal(images[0].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("suffix", ["jpg", "JPEG"])
def test_jpeg_is_read(tree: Path, suffix: str) -> None:
    Image.new("RGB", (5, 6), (200, 100, 50)).save(tree / f"test/ant/1.{suffix}", format="JPEG", quality=95)

    images, labels = load(tree, train=False)

    assert labels.tolist() == [0, 0, 1, 2, 3]
    assert (images[1].float().mean((1, 2)) - torch.tensor([200.0, 100.0, 50.0])).abs().max() < 3


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1"])
def test_other_colour_modes_become_rgb(tree: Path, mode: str) -> None:
    Image.new("RGB", (5, 6), (255, 255, 255)).convert(mode).save(tree / "test/ant/0.png")

    assert (load(tree, train=False)[0][0] == 255).all()


def test_hidden_and_other_files_are_not_read(tree: Path) -> None:
    (tree / "train/.git").mkdir()
    (tree / "train/ant/.0.png").write_bytes(b"hidden")
    (tree / "train/ant/notes.txt").write_bytes(b"not an image")
    (tree / "train/readme.md").write_bytes(b"not a class")

    assert tree_classes(str(tree)) == list(CLASSES)
    assert len(load(tree)[1]) == 8


def test_images_are_resized(tree: Path) -> None:
    images, _ = load(tree, image_size=4)

    expected = Image.open(tree / "train/ant/0.png").resize((4, 4), Image.Resampling.BILINEAR)
    assert images.shape == (8, 3, 4, 4)
    assert numpy.array_equal(images[0].permute(1, 2, 0).numpy(), numpy.asarray(expected))


def test_measured_statistics_are_those_of_the_training_images(tree: Path) -> None:
    data = SplitImageFolder(str(tree), num_tasks=2)
    data.setup("fit")

    pixels = pixels_of(tree, "train").double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())
    normalised = data.transform(data.train_set.images)
    assert normalised.mean((0, 2, 3)).abs().max() < 1e-5
    assert normalised.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)


def test_an_evaluation_normalises_like_the_training(tree: Path) -> None:
    training, testing = SplitImageFolder(str(tree), num_tasks=2), SplitImageFolder(str(tree), num_tasks=2)
    training.setup("fit")
    testing.setup("test")

    assert not hasattr(testing, "train_set")
    assert (testing.mean, testing.std) == (training.mean, training.std)
    assert torch.equal(testing.transform.scale, training.transform.scale)


def test_given_statistics_and_augmentation_are_used(tree: Path) -> None:
    data = SplitImageFolder(str(tree), num_tasks=2, mean=[0.5, 0.4, 0.3], std=[0.1, 0.2, 0.3], padding=2, flip=False)
    data.setup("fit")

    assert (data.mean, data.std) == ((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    assert (data.transform.padding, data.transform.flip) == (2, False)
    expected = (pixels_of(tree, "train") / 255 - torch.tensor(data.mean).view(3, 1, 1)) / torch.tensor(data.std).view(
        3, 1, 1
    )
    assert torch.allclose(data.transform(data.train_set.images), expected, atol=1e-5)


def test_only_the_missing_statistic_is_measured(tree: Path) -> None:
    data = SplitImageFolder(str(tree), num_tasks=2, mean=[0.5, 0.4, 0.3])
    data.setup("fit")

    assert data.mean == (0.5, 0.4, 0.3)
    assert data.std == pytest.approx((pixels_of(tree, "train").double() / 255).std((0, 2, 3), correction=0).tolist())


def test_statistics_over_several_chunks() -> None:
    images = torch.randint(256, (5000, 2, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 1] //= 4

    mean, std = channel_statistics(images)

    assert mean == pytest.approx((images.double() / 255).mean((0, 2, 3)).tolist(), abs=1e-12)
    assert std == pytest.approx((images.double() / 255).std((0, 2, 3), correction=0).tolist(), abs=1e-12)


def test_a_constant_channel_can_be_normalised() -> None:
    _, std = channel_statistics(torch.zeros(3, 1, 2, 2, dtype=torch.uint8))

    assert std == (1 / 255,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": [0.5, 0.5]}, r"mean must be three numbers.*\[0.5, 0.5\]"),
        ({"std": [0.5]}, r"std must be three numbers.*\[0.5\]"),
        ({"std": [0.5, 0.0, 0.5]}, "std must be positive, got 0.0"),
        ({"image_size": 0}, "image_size must be positive, got 0"),
        ({"padding": -1}, "padding must be zero or positive, got -1"),
        ({"num_tasks": 3}, "num_tasks must divide the 4 classes of SplitImageFolder, got 3"),
    ],
)
def test_invalid_arguments_are_refused(tree: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SplitImageFolder(str(tree), **{"num_tasks": 2, **arguments})


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no root": (shutil.rmtree, "{tree}: it does not exist"),
    "no split": (lambda tree: shutil.rmtree(tree / "test"), "{tree}/test with a sub-folder for each class"),
    "no class": (lambda tree: empty(tree / "train"), "sub-folder for each class in {tree}/train: there are none"),
    "a class of one split": (
        lambda tree: (tree / "test/emu").mkdir(),
        r"{tree}/test \['emu'\] are not in {tree}/train",
    ),
    "no image": (lambda tree: empty(tree / "train/bee"), "{tree}/train/bee must hold at least one image"),
    "a dangling link": (lambda tree: (tree / "train/bee/9.png").symlink_to("nowhere"), "{tree}/train/bee/9.png"),
    "no content": (
        lambda tree: (tree / "train/cat/1.png").write_bytes(b""),
        "cannot decode the image {tree}/train/cat",
    ),
    "half an image": (
        lambda tree: cut_short(tree / "train/cat/1.png"),
        "cannot decode the image {tree}/train/cat/1.png",
    ),
    "16 bits": (
        lambda tree: Image.fromarray(numpy.full((6, 5), 40000, dtype=numpy.uint16)).save(tree / "train/cat/1.png"),
        "cat/1.png: its pixels must have 8 bits per channel, got mode I;16",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_tree_is_refused_by_name(tree: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(tree)
    with pytest.raises(ConfigurationError, match=message.replace("{tree}", str(tree))):
        SplitImageFolder(str(tree), num_tasks=1).prepare_data()


def test_images_of_two_sizes_are_refused(tree: Path) -> None:
    Image.new("RGB", (7, 8)).save(tree / "train/cat/1.png")

    with pytest.raises(ConfigurationError, match=f"{tree}/train/cat/1.png is 7x8 and .*ant/0.png is 5x6.*image_size"):
        load(tree)
    assert load(tree, image_size=6)[0].shape == (8, 3, 6, 6)


def test_a_second_start_does_not_decode(tree: Path, decoded: list[str]) -> None:
    first = load(tree)
    decoded.clear()
    second = load(tree)

    assert not decoded
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_prepare_data_decodes_for_all_ranks(tree: Path, decoded: list[str]) -> None:
    SplitImageFolder(str(tree), num_tasks=2).prepare_data()
    assert {Path(path) for path in decoded} == set(tree.glob("*/*/*.png"))
    decoded.clear()

    other_rank = SplitImageFolder(str(tree), num_tasks=2)
    other_rank.setup("fit")

    assert not decoded
    assert torch.equal(other_rank.train_set.images, pixels_of(tree, "train"))


def test_images_from_the_cache_can_be_changed_without_changing_it(tree: Path) -> None:
    load(tree)
    load(tree)[0].zero_()

    assert torch.equal(load(tree)[0], pixels_of(tree, "train"))


def touch(tree: Path) -> None:
    status = (tree / "train/ant/0.png").stat()
    os.utime(tree / "train/ant/0.png", ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def lengthen(tree: Path) -> None:
    path = tree / "train/ant/0.png"
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"more")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change(tree: Path) -> None:
    Image.new("RGB", (5, 6), (1, 2, 3)).save(tree / "train/ant/0.png")


def add(tree: Path) -> None:
    shutil.copy(tree / "train/ant/0.png", tree / "train/ant/2.png")


def remove(tree: Path) -> None:
    (tree / "train/ant/0.png").unlink()


def rename(tree: Path) -> None:
    (tree / "train/ant/0.png").rename(tree / "train/ant/9.png")


@pytest.mark.parametrize("edit", [touch, lengthen, change, add, remove, rename])
def test_an_edited_tree_is_decoded_again(tree: Path, decoded: list[str], edit: Callable[[Path], None]) -> None:
    load(tree)
    load(tree, train=False)
    before = cache_files(tree)
    edit(tree)
    decoded.clear()

    images, labels = load(tree)

    assert len(set(decoded)) == len(labels)
    assert torch.equal(images, pixels_of(tree, "train"))
    after = cache_files(tree)
    assert len(after) == 2  # one per split
    assert after[0] == before[0]  # that of the test split
    assert after[1] != before[1]


def test_the_cache_moves_with_the_tree(tree: Path, decoded: list[str]) -> None:
    load(tree)
    shutil.move(tree, tree.parent / "elsewhere")
    decoded.clear()

    load(tree.parent / "elsewhere")

    assert not decoded


@pytest.mark.parametrize("damage", ["empty", "cut short", "garbage", "other shape", "header"])
def test_a_damaged_cache_is_rebuilt(tree: Path, decoded: list[str], damage: str) -> None:
    load(tree)
    (path,) = cache_files(tree)
    whole = path.read_bytes()
    if damage == "other shape":
        numpy.save(path, numpy.zeros((7, 3, 6, 5), dtype=numpy.uint8))
    else:
        damaged = {"empty": b"", "cut short": whole[:-1], "garbage": b"PK\3\4" + whole, "header": whole[:20] + b"((("}
        path.write_bytes(damaged[damage])
    decoded.clear()

    assert torch.equal(load(tree)[0], pixels_of(tree, "train"))
    assert decoded
    assert path.read_bytes() == whole


class Bomb:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.target,)


def test_the_cache_is_plain_numpy_and_a_pickle_in_its_place_is_not_loaded(tree: Path, tmp_path: Path) -> None:
    load(tree)
    (path,) = cache_files(tree)
    assert numpy.load(path, allow_pickle=False).dtype == numpy.uint8

    bomb = numpy.empty((8, 3, 6, 5), dtype=object)
    bomb[:] = Bomb(str(tmp_path / "exploded"))
    numpy.save(path, bomb, allow_pickle=True)
    load(tree)
    path.write_bytes(pickle.dumps(Bomb(str(tmp_path / "exploded"))))
    load(tree)

    assert not (tmp_path / "exploded").exists()
    assert numpy.load(path, allow_pickle=False).dtype == numpy.uint8


def refuse(*arguments: Any, **kwargs: Any) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("function", ["mkdir", "replace"])
def test_a_folder_that_cannot_be_written_is_tolerated(
    tree: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setattr(os, function, refuse)
    data = SplitImageFolder(str(tree), num_tasks=2)

    with pytest.warns(UserWarning, match=f"cannot write a cache in {tree}/.ddn_cache.*Permission denied"):
        data.prepare_data()
    decodings = len(decoded)
    data.setup("fit")
    data.prepare_data()

    assert torch.equal(data.train_set.images, pixels_of(tree, "train"))
    assert len(decoded) == decodings  # once per run, not once per call
    assert not (tree / ".ddn_cache").exists() or not cache_files(tree)


def test_a_kill_while_writing_leaves_no_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            load(tree)

    assert cache_files(tree) == []
    assert torch.equal(load(tree)[0], pixels_of(tree, "train"))


def test_ranks_may_write_at_once(tree: Path) -> None:
    files = tree_images(str(tree), "train", CLASSES)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ImageReader(str(tree)).read("train", files)[0], range(16)))

    assert all(torch.equal(images, pixels_of(tree, "train")) for images in results)
    assert len(cache_files(tree)) == 1


def test_a_cache_written_by_a_faster_rank_is_enough(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def replace_and_lose(source: str, target: str) -> None:
        replace(source, target)
        raise FileNotFoundError(source)

    monkeypatch.setattr(os, "replace", replace_and_lose)

    assert torch.equal(load(tree)[0], pixels_of(tree, "train"))  # and no warning, which would be an error here


def test_cache_dir_serves_several_trees(tree: Path, tmp_path: Path, decoded: list[str]) -> None:
    other = tmp_path / "other" / "tree"
    shutil.copytree(tree, other)
    Image.new("RGB", (5, 6)).save(other / "train/ant/0.png")
    for root in (tree, other):
        load(root, cache_dir=str(tmp_path / "cache"))
    decoded.clear()

    for root in (tree, other):
        assert torch.equal(load(root, cache_dir=str(tmp_path / "cache"))[0], pixels_of(root, "train"))
        assert not (root / ".ddn_cache").exists()
    assert not decoded


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_shows_progress(tree: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    shown = []

    def track(steps: Iterable[None], *arguments: Any, disable: bool, **kwargs: Any) -> Iterable[None]:
        shown.append(not disable)
        return steps

    monkeypatch.setattr(decoding, "track", track)
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    load(tree)

    assert shown == [rank == 0]


def test_a_stream_does_not_change_the_measured_mean_and_std(tree: Path) -> None:
    plain = SplitImageFolder(str(tree), num_tasks=2)
    streamed = SplitImageFolder(str(tree), num_tasks=2, stream=[RotatedImages(), FewShot(1)])
    for data in (plain, streamed):
        data.setup("fit")
    assert (plain.mean, plain.std) == (streamed.mean, streamed.std)
