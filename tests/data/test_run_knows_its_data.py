"""A run is resumed, evaluated and counted as finished only with the data that it was trained on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from ddn_lightning.cli import main
from ddn_lightning.reproduce.grid import read_grid, select
from ddn_lightning.reproduce.plan import Options
from ddn_lightning.reproduce.plan import plan as runs_of
from ddn_lightning.reproduce.presets import read_presets

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIONS = """--model.backbone SmallNet --model.backbone.in_channels 3 --model.backbone.width 2 --model.buffer_size 4
--data.root images --data.num_tasks 2 --data.batch_size 2 --trainer.enable_progress_bar false --trainer.accelerator cpu
--trainer.devices 1 --trainer.log_every_n_steps 1 --runs runs --name mine""".split()  # noqa: SIM905  # a command line
COMMAND = ["-c", str(CONFIGS / "base.yaml"), "-c", str(CONFIGS / "data/image_folder.yaml"), *OPTIONS]
STOPPED = ["--trainer.max_steps", "3"]


def write_images(folder: Path, classes: str, seed: int = 0) -> None:
    generator = numpy.random.default_rng(seed)
    for split, number in (("train", 4), ("test", 2)):
        for name in classes:
            (folder / split / name).mkdir(parents=True)
            for index in range(number):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def images() -> Path:
    write_images(Path("images"), "abcd")
    return Path("images")


def rename_a_class(images: Path) -> None:
    for split in ("train", "test"):
        (images / split / "a").rename(images / split / "x")


def delete_an_image(images: Path) -> None:
    (images / "train/b/1.png").unlink()


def change_an_image(images: Path) -> None:
    Image.new("RGB", (8, 8), (1, 2, 3)).save(images / "train/b/1.png")


def swap_two_classes(images: Path) -> None:
    for before, after in (("b", "x"), ("c", "b"), ("x", "c")):
        (images / "train" / before).rename(images / "train" / after)


def take_other_classes(images: Path) -> None:
    shutil.rmtree(images)
    write_images(images, "wxyz")


def change_a_test_image(images: Path) -> None:
    Image.new("RGB", (8, 8), (1, 2, 3)).save(images / "test/b/1.png")


CHANGES = [
    (rename_a_class, "class_names must be those of the checkpoint, ['a', 'b', 'c', 'd'], got ['b', 'c', 'd', 'x']"),
    (delete_an_image, "the train images must be those of the checkpoint, but class b has 4 there and 3 here"),
    (change_an_image, "the train images must be those of the checkpoint, but their pixels differ"),
    (swap_two_classes, "the train images must be those of the checkpoint, but their pixels differ"),
    (take_other_classes, "['a', 'b', 'c', 'd'], got ['w', 'x', 'y', 'z']"),
    (change_a_test_image, "the test images must be those of the checkpoint, but their pixels differ"),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_run_does_not_resume_with_other_data(
    images: Path, change: Callable[[Path], None], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *COMMAND, *STOPPED]) == 0
    before = contents(Path("runs"))
    change(images)
    capsys.readouterr()
    assert main(["fit", *COMMAND, "--ckpt_path", "last"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert expected in line
    assert contents(Path("runs")) == before


def test_a_checkpoint_is_not_evaluated_on_other_data(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *COMMAND]) == 0
    results = json.loads(Path("runs/mine/results.json").read_text())
    before = contents(Path("runs"))
    statistics = ["--data.mean", str(results["data"]["mean"]), "--data.std", str(results["data"]["std"])]
    for command in ("test", "validate"):
        assert main([command, *COMMAND, "--ckpt_path", "last"]) == 0
    delete_an_image(images)  # of training, by which images are normalised unless that is given
    accuracies = []
    for command in ("test", "validate"):
        capsys.readouterr()
        assert main([command, *COMMAND, "--ckpt_path", "last"]) == 2
        message = "class b has 4 there and 3 here; to evaluate anyway, set data.mean and data.std to those of its"
        assert message in capsys.readouterr().err
        assert main([command, *COMMAND, "--ckpt_path", "last", *statistics]) == 0
        accuracies.append(f"{results['average_accuracy']:.2f}"[:4] in capsys.readouterr().out)
    assert accuracies == [True, True]
    change_a_test_image(images)
    for command in ("test", "validate"):
        assert main([command, *COMMAND, "--ckpt_path", "last", *statistics]) == 2
        assert "the test images must be those of the checkpoint" in capsys.readouterr().err
    assert contents(Path("runs")) == before


def test_moved_data_is_the_same_data(images: Path) -> None:
    assert main(["fit", *COMMAND, *STOPPED]) == 0
    shutil.copytree(images, "elsewhere")
    shutil.rmtree(images)
    assert main(["fit", *COMMAND, "--data.root", "elsewhere", "--ckpt_path", "last"]) == 0


def test_results_record_the_data(images: Path) -> None:
    assert main(["fit", *COMMAND]) == 0
    data = json.loads(Path("runs/mine/results.json").read_text())["data"]
    assert data["class_names"] == ["a", "b", "c", "d"]
    assert data["train"]["images_per_class"] == [4] * 4
    assert data["test"]["images_per_class"] == [2] * 4
    assert data["test"]["image_shape"] == [3, 8, 8]
    checkpoint = torch.load("runs/mine/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["ddn_lightning"]["sequence"]["data"] == data


REPRODUCED = [
    "reproduce",
    "table1",
    "--methods",
    "er",
    "--datasets",
    "cifar10",
    "--buffers",
    "200",
    "--plugins",
    "none",
]
REPRODUCED += ["--seeds", "1", "--configs", "configs", "--format", "csv"]


def planned_command() -> list[str]:
    configs = Path("configs")
    cells = select(read_grid("table1", configs).cells, {"methods": ["er"], "buffers": [200], "plugins": ["none"]})
    options = Options(configs, Path("runs"), data=Path("images"))
    return runs_of(cells[:1], [1], read_presets(configs), options)[0].command()


@pytest.fixture
def plan(images: Path) -> list[str]:
    """A plan with one run, which takes a second: its dataset is a small one."""
    shutil.copytree(CONFIGS, "configs")
    small = """
data: {class_path: SplitImageFolder, init_args: {root: data, num_tasks: 2}}
model: {init_args: {backbone: {class_path: SmallNet, init_args: {in_channels: 3, width: 2}}}}
trainer: {accelerator: cpu, devices: 1, log_every_n_steps: 1}
"""
    Path("configs/data/cifar10.yaml").write_text(small)
    Path("configs/setting/online.yaml").write_text("data: {init_args: {batch_size: 2}}")
    return REPRODUCED


def test_finished_runs_on_other_data_do_not_count(
    plan: list[str], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(planned_command()) == 0  # in this process, as that is faster
    capsys.readouterr()
    assert main([*plan, "--data", "images"]) == 0
    table = capsys.readouterr().out
    before = contents(Path("runs"))

    shutil.copytree(images, "moved")  # the same data elsewhere
    assert main([*plan, "--data", "moved"]) == 0
    printed = capsys.readouterr()
    assert "found online-cifar10-200-er-seed1" in printed.err
    assert printed.out == table

    write_images(Path("others"), "abcd", seed=1)  # other data
    assert main([*plan, "--data", "others"]) == 2
    printed = capsys.readouterr()
    (run,) = [path.parent for path in before if path.name == "results.json"]
    assert f"error: the train images must be those of the finished run {run}, but their pixels differ" in printed.err
    assert "choose another folder by --runs" in printed.err
    assert printed.out == ""

    delete_an_image(images)  # other data in the same place
    assert main([*plan, "--data", "images"]) == 2
    assert "class b has 4 there and 3 here" in capsys.readouterr().err

    shutil.rmtree(images)  # nothing to compare with
    assert main([*plan, "--data", "images"]) == 0
    printed = capsys.readouterr()
    assert "note: cannot check that the runs found were trained on the data given now" in printed.err
    assert printed.out == table
    assert contents(Path("runs")) == before


def test_other_data_of_uneven_tasks_is_known_too(
    plan: list[str], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("configs/data/cifar10.yaml")
    path.write_text(path.read_text().replace("num_tasks: 2", "num_tasks: 3, task_sizes: [1, 1, 2]"))
    assert main(planned_command()) == 0
    delete_an_image(images)
    assert main([*plan, "--data", "images"]) == 2
    assert "class b has 4 there and 3 here" in capsys.readouterr().err
