"""Which files are images, and which are skipped with a note."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from ddn_lightning.data.split_image_folder import SplitImageFolder


def load(root: Path) -> tuple[torch.Tensor, torch.Tensor]:
    return SplitImageFolder(str(root), num_tasks=2).load(train=True)


def test_linked_images_and_folders_are_read(tree: Path) -> None:
    expected = load(tree)
    (tree / "elsewhere").mkdir()
    for name in ("ant/0.png", "bee"):
        path = tree / "train" / name
        path.rename(tree / "elsewhere" / path.name)
        path.symlink_to(tree / "elsewhere" / path.name)

    found = load(tree)

    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_jfif_is_a_jpeg(tree: Path) -> None:
    Image.new("RGB", (5, 6), (200, 100, 50)).save(tree / "train/ant/2.JFIF", format="JPEG")

    assert load(tree)[1].tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_skipped_files_are_noted_once_with_their_number_and_an_example(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tree)
    assert "note" not in capsys.readouterr().err
    for name in ("ant/notes.txt", "bee/raw.nef", "bee/.hidden"):
        (tree / "train" / name).touch()
    (tree / "train/dog/more.png").mkdir()

    data = SplitImageFolder(str(tree), num_tasks=2)
    data.prepare_data()
    data.setup("fit")

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "note" in line]
    assert f"note: skipped 2 files and 1 sub-folder beside the images, such as {tree}/train/ant/notes.txt" in line
    assert ".jfif" in line
