import hashlib
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ddn_lightning.data import decoding
from ddn_lightning.data.split_tiny_imagenet import SplitTinyImageNet
from ddn_lightning.errors import ConfigurationError

WNIDS = ["n03", "n01", "n04", "n02"]  # as in the official file: in no order
FOLDER = "tiny-imagenet-200"
Pixels = NDArray[numpy.uint8]


class FourClasses(SplitTinyImageNet):
    num_classes = 4


def make(root: Path, download: bool = False) -> FourClasses:
    return FourClasses(str(root), download=download, num_tasks=2)


def save(path: Path, pixels: Pixels) -> None:
    """Under the official suffix, but without the loss of JPEG: Pillow looks at the content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="PNG")


def write_folder(root: Path) -> Path:
    """The official layout: two training images and one validation image of each class, 8x8 pixels."""
    generator = numpy.random.default_rng(0)
    folder = root / FOLDER
    for wnid in WNIDS:
        for index in range(2):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=numpy.uint8)
            save(folder / f"train/{wnid}/images/{wnid}_{index}.JPEG", pixels)
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text("0\t0\t63\t63\n")
    lines = []
    for index, wnid in enumerate(["n01", "n02", "n03", "n04"]):
        save(folder / f"val/images/val_{index}.JPEG", generator.integers(0, 256, (8, 8, 3), dtype=numpy.uint8))
        lines.append(f"val_{index}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    return folder


def pixels_of(path: Path) -> Tensor:
    return torch.from_numpy(numpy.array(Image.open(path))).permute(2, 0, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zip file of the official layout somewhere else, whose address and checksum the class knows."""
    source = tmp_path / "source"
    shutil.make_archive(str(source / FOLDER), "zip", write_folder(source).parent, FOLDER)
    path = source / f"{FOLDER}.zip"
    monkeypatch.setattr(FourClasses, "url", path.as_uri())
    monkeypatch.setattr(FourClasses, "md5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def download_url_to_file(*arguments: Any, **kwargs: Any) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr(torch.hub, "download_url_to_file", download_url_to_file)


def test_the_official_layout_is_read(folder: Path, tmp_path: Path) -> None:
    data = make(tmp_path)
    data.prepare_data()
    data.setup("fit")

    assert data.train_set.images.shape == (8, 3, 8, 8)
    assert data.train_set.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.equal(data.train_set.images[2], pixels_of(folder / "train/n01/images/n01_0.JPEG"))
    assert data.test_set.labels.tolist() == [1, 3, 0, 2]  # the place of n01, n02, n03, n04 in wnids.txt
    assert torch.equal(data.test_set.images[3], pixels_of(folder / "val/images/val_3.JPEG"))


def test_grey_images_become_rgb(folder: Path, tmp_path: Path) -> None:
    grey = numpy.arange(64, dtype=numpy.uint8).reshape(8, 8)
    save(folder / "train/n03/images/n03_0.JPEG", grey)

    images, _ = make(tmp_path).load(train=True)

    assert torch.equal(images[0], torch.from_numpy(grey).expand(3, 8, 8))


def test_by_default_there_are_ten_tasks_and_images_are_cropped_and_mirrored() -> None:
    data = SplitTinyImageNet()

    assert data.task_classes.tolist() == torch.arange(200).view(10, 20).tolist()
    assert (data.transform.padding, data.transform.flip) == (4, True)


def test_a_second_start_does_not_decode(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path).prepare_data()
    monkeypatch.setattr(decoding, "decode_image", None)
    data = make(tmp_path)
    data.prepare_data()
    data.setup("fit")

    assert torch.equal(data.test_set.images[3], pixels_of(folder / "val/images/val_3.JPEG"))


def test_prepare_data_downloads_checks_and_unpacks(archive: Path, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    data = make(root, download=True)
    data.prepare_data()
    data.setup("fit")

    assert torch.equal(data.train_set.images[2], pixels_of(root / FOLDER / "train/n01/images/n01_0.JPEG"))
    assert sorted(os.listdir(root)) == [FOLDER, f"{FOLDER}.zip"]


def test_an_existing_zip_is_used_without_download(archive: Path, tmp_path: Path, no_network: None) -> None:
    shutil.copy(archive, tmp_path)
    data = make(tmp_path)
    data.prepare_data()
    data.setup("test")

    assert len(data.test_set) == 4


def test_an_unpacked_folder_needs_no_zip(folder: Path, tmp_path: Path, no_network: None) -> None:
    (tmp_path / f"{FOLDER}.zip").write_bytes(b"not looked at")

    make(tmp_path, download=True).prepare_data()

    assert len(make(tmp_path).load(train=True)[0]) == 8


def test_a_wrong_checksum_is_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / f"{FOLDER}.zip").write_bytes(b"cut short")
    found = hashlib.md5(b"cut short").hexdigest()

    with pytest.raises(ConfigurationError, match=f"{tmp_path}/{FOLDER}.zip must .* {FourClasses.md5}, got {found}"):
        make(tmp_path).prepare_data()
    assert not (tmp_path / FOLDER).exists()


def test_a_failed_download_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FourClasses, "url", (tmp_path / "nowhere.zip").as_uri())

    with pytest.raises(ConfigurationError, match=f"cannot download {FourClasses.url} to {tmp_path}/data/{FOLDER}.zip"):
        make(tmp_path / "data", download=True).prepare_data()
    assert os.listdir(tmp_path / "data") == []


@pytest.mark.parametrize("call", ["prepare_data", "load"])
def test_missing_files_are_reported_with_a_remedy(tmp_path: Path, call: str) -> None:
    data = make(tmp_path)

    with pytest.raises(
        ConfigurationError, match=f"{tmp_path}/{FOLDER}: it does not exist.*download=True.*{FOLDER}.zip"
    ):
        data.prepare_data() if call == "prepare_data" else data.load(train=True)


def put_archive(root: Path, monkeypatch: pytest.MonkeyPatch, members: Sequence[tuple[str, str, int]]) -> None:
    """A zip with the right checksum and these members (name, content, permissions) beside a good one."""
    root.mkdir()
    path = root / f"{FOLDER}.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{FOLDER}/wnids.txt", "n01\n")
        for name, content, permissions in members:
            member = zipfile.ZipInfo(name)
            member.external_attr = permissions << 16
            packed.writestr(member, content)
    monkeypatch.setattr(FourClasses, "md5", hashlib.md5(path.read_bytes()).hexdigest())


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        ("../evil.txt", 0o100644),
        (f"{FOLDER}/../../evil.txt", 0o100644),
        ("/evil.txt", 0o100644),
        ("C:/evil.txt", 0o100644),
        ("C:evil.txt", 0o100644),
        ("..\\evil.txt", 0o100644),
        (f"{FOLDER}/evil.txt", 0o120777),  # a symbolic link
    ],
)
def test_unsafe_members_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, permissions: int
) -> None:
    put_archive(tmp_path / "root", monkeypatch, [(name, "../../evil", permissions)])

    with pytest.raises(ConfigurationError, match=r"got .*evil\.txt: nothing was unpacked"):
        make(tmp_path / "root").prepare_data()
    assert os.listdir(tmp_path / "root") == [f"{FOLDER}.zip"]
    assert os.listdir(tmp_path) == ["root"]


@pytest.mark.parametrize(("owner", "function"), [(zipfile.ZipFile, "extract"), (os, "rename")])
def test_a_kill_while_unpacking_leaves_no_half_folder(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, function: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(archive, root)
    extract = zipfile.ZipFile.extract

    def kill(*arguments: Any) -> str:
        if function == "extract" and not str(arguments[1].filename).endswith("val_2.JPEG"):
            return extract(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, kill)
        with pytest.raises(KeyboardInterrupt):
            make(root).prepare_data()

    assert os.listdir(root) == [f"{FOLDER}.zip"]
    make(root).prepare_data()
    assert len(make(root).load(train=False)[0]) == 4


def test_another_node_may_unpack_first(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(archive, root)
    rename = os.rename

    def lose_the_race(source: str, target: str) -> None:
        write_folder(root)
        rename(source, target)

    monkeypatch.setattr(os, "rename", lose_the_race)
    make(root).prepare_data()

    assert sorted(os.listdir(root)) == [FOLDER, f"{FOLDER}.zip"]


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("wnids.txt", "n04\n", "", "wnids.txt must name 4 different classes, got 3 names"),
        ("wnids.txt", "n04", "n03", "got 4 names, 3 of them different"),
        ("val/val_annotations.txt", "n04", "n99", "val_annotations.txt, line 4: expected a class .* got 'n99'"),
        ("val/val_annotations.txt", "\tn04", "", "line 4: expected a class of wnids.txt, got '0'"),
        ("val/val_annotations.txt", "n04", "n03", "val_annotations.txt must name an image of each .* none of n04"),
        ("val/val_annotations.txt", "val_2", "val_9", "val_annotations.txt, line 3: val_9.JPEG is not in .*val/images"),
    ],
)
def test_invalid_lists_are_refused(folder: Path, tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    edit(folder, name, old, new)

    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path).prepare_data()


def test_the_order_of_the_names_is_part_of_the_record(folder: Path, tmp_path: Path) -> None:
    data = make(tmp_path)
    data.setup("fit")

    assert data.resume_state()["data"]["class_names"] == WNIDS


def test_classes_have_the_first_of_their_names(folder: Path, tmp_path: Path) -> None:
    words = [
        "n01\tgoldfish, Carassius auratus",
        "n02\tEgyptian cat",
        "n03\tcrane",
        "n00\tentity",
        "n04\tcrane, derrick",
    ]
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    data = make(tmp_path)
    data.setup("fit")

    assert data.class_names == ["n03", "goldfish", "n04", "Egyptian cat"]  # "crane" is two classes
    assert data.label_names() == data.class_names
    assert data.data_record().class_names == tuple(data.class_names)
    assert data.train_set.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_class_without_a_name_keeps_its_identifier(folder: Path, tmp_path: Path) -> None:
    (folder / "words.txt").write_text("n01\tgoldfish\nn02\t\n\nno tab\n")

    assert make(tmp_path).class_names == ["n03", "goldfish", "n04", "n02"]
