"""What a trained run is good for: ``ddn predict``, ``ddn test`` and ``ddn export`` of its folder."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

import ddn_lightning
from ddn_lightning.cli import main
from ddn_lightning.cli.predict_command import as_csv
from ddn_lightning.cli.run_figures import RunFigures
from ddn_lightning.deploy import export as model_file
from ddn_lightning.deploy.export import onnx_session
from ddn_lightning.deploy.predict import Predictions

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIONS = """--model.backbone SmallNet --model.backbone.in_channels 3 --model.backbone.width 4 --model.buffer_size 8
--data.num_tasks 2 --data.batch_size 4 --data.epochs_per_task 2 --data.class_order_seed 1
--trainer.log_every_n_steps 1 --trainer.enable_progress_bar false --trainer.accelerator cpu --trainer.devices 1
--name mine""".split()  # noqa: SIM905
DOMAINS = ["-c", str(CONFIGS / "stream/rotated.yaml"), "--data.class_order_seed", "null"]


def write_images(folder: Path, classes: str = "abcd", number: int = 3, seed: int = 0) -> None:
    generator = numpy.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        shade = numpy.array([60 * "abcdef".index(name), 200 - 60 * "abcdef".index(name), 90])
        for index in range(number):
            pixels = (generator.integers(-40, 40, (8, 8, 3)) + shade).clip(0, 255)
            Image.fromarray(pixels.astype(numpy.uint8)).save(folder / name / f"{index}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images/ and runs/mine/, which nobody may change."""
    folder = tmp_path_factory.mktemp("trained")
    write_images(folder / "images/train", number=8)
    write_images(folder / "images/test", seed=1)
    files = ["-c", str(CONFIGS / "base.yaml"), "-c", str(CONFIGS / "data/image_folder.yaml")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFigures, "_draw", lambda self, run: [])
        places = ["--data.root", str(folder / "images"), "--runs", str(folder / "runs")]
        assert main(["fit", *files, *OPTIONS, *places]) == 0
    return folder


@pytest.fixture
def run(trained: Path) -> str:
    return str(trained / "runs/mine")


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run with a mistake: exit code 2, one line, nothing on disk; returns the line."""
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.strip().splitlines()
    assert sorted(Path().rglob("*")) == before
    return line


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predict_writes_a_class_and_a_probability_for_each_file(
    trained: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images = trained / "images/test"
    assert main(["predict", run, str(images), "-o", "classes.csv", "--batch_size", "5", "--top", "2"]) == 0
    rows = rows_of(Path("classes.csv").read_text())
    assert [row["file"] for row in rows] == sorted(str(path) for path in images.rglob("*.png"))
    expected = ddn_lightning.load(run).predict([row["file"] for row in rows])
    assert [row["class"] for row in rows] == expected.names
    best = expected.probabilities.topk(2).values
    for place, column in enumerate(("probability", "probability_2")):
        torch.testing.assert_close(torch.tensor([float(row[column]) for row in rows]), best[:, place])
    capsys.readouterr()
    assert main(["predict", run, str(images / "a/0.png")]) == 0
    assert len(rows_of(capsys.readouterr().out)) == 1


def test_predict_and_test_replace_no_image_of_theirs(
    trained: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "images/test", "photos")
    Path("classes.csv").symlink_to("photos/a/1.png")
    before = Path("photos/a/1.png").read_bytes()
    for output, expected in (
        ("photos/a/1.png", "output must be a file that ends in .csv, got photos/a/1.png"),
        ("classes.csv", "output must be another file than the images, got classes.csv"),
    ):
        assert expected in refusal(["predict", run, "photos", "-o", output], capsys)
    assert "another file than the images" in refusal(["test", run, "photos", "-o", "photos/a/1.png"], capsys)
    assert Path("photos/a/1.png").read_bytes() == before


def test_predict_writes_no_cell_that_a_spreadsheet_executes() -> None:
    found = [Predictions(torch.eye(5), ("=1+1", "@SUM(1)", "+1", "\tx", "plain"))]
    rows = rows_of(as_csv(found, ["-1.png", "=.png", "a=.png", "\tb.png", "c.png"], top=1))
    assert [row["class"] for row in rows] == ["'=1+1", "'@SUM(1)", "'+1", "'\tx", "plain"]
    assert [row["file"] for row in rows] == ["'-1.png", "'=.png", "a=.png", "'\tb.png", "c.png"]
    assert {row["probability"] for row in rows} == {"1.000000"}


def test_predict_notes_only_what_it_skips(trained: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained / "images/test/a", "photos/inner/deeper")
    shutil.copytree(trained / "images/test/b", "photos", dirs_exist_ok=True)
    Path("photos/inner/notes.txt").touch()
    number = len(list(Path("photos").rglob("*.png")))
    capsys.readouterr()
    assert main(["predict", run, "photos"]) == 0
    printed = capsys.readouterr()
    assert len(rows_of(printed.out)) == number
    (line,) = [line for line in printed.err.splitlines() if "skipped" in line]
    assert "note: skipped 1 file beside the images, such as photos/inner/notes.txt: an image's name ends in" in line


def test_test_on_a_folder_agrees_with_the_results_of_the_run(
    trained: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((Path(run) / "results.json").read_text())
    for folder in ("images", "images/test"):
        capsys.readouterr()
        assert main(["test", run, str(trained / folder), "--format", "csv"]) == 0
        rows = rows_of(capsys.readouterr().out)
        tasks = [float(row["accuracy"]) for row in rows if row["task"] and not row["class"]]
        assert tasks == pytest.approx(results["accuracy_matrix"][-1], abs=1e-3)
        assert float(rows[-1]["accuracy"]) == pytest.approx(results["average_accuracy"], abs=1e-3)
        assert sorted(row["class"] for row in rows if row["class"]) == list("abcd")
        assert rows[-1]["images"] == "12"


def test_test_on_other_images_gives_the_accuracy_of_each_class(
    trained: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(Path("photos"), "bd", number=5, seed=2)
    assert main(["test", run, "photos", "-o", "table.csv", "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert "has no images of 2 of 4 classes: a, c" in printed.err
    rows = rows_of(Path("table.csv").read_text())
    method = ddn_lightning.load(run)
    for name in "bd":
        found = method.predict(Path("photos") / name).names
        (row,) = [row for row in rows if row["class"] == name]
        assert method.label_names.index(name) in method.task_classes[int(row["task"]) - 1]
        assert (row["images"], float(row["accuracy"])) == ("5", 100 * found.count(name) / 5)
    assert main(["test", run, "photos"]) == 0
    assert "| average | all tasks | 10 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "tasks"),
    [(["--data.task_sizes", "[1,3]"], [3, 9]), (DOMAINS, [12])],
    ids=["uneven tasks", "domains"],
)
def test_test_on_a_folder_measures_uneven_tasks_and_takes_domains_as_one(
    options: list[str], tasks: list[int], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["-c", str(CONFIGS / "base.yaml"), "-c", str(CONFIGS / "data/image_folder.yaml")]
    places = ["--data.root", str(trained / "images"), "--runs", "runs"]
    assert main(["fit", *files, *OPTIONS, *options, *places, "--data.epochs_per_task", "1"]) == 0
    results = json.loads(Path("runs/mine/results.json").read_text())
    capsys.readouterr()
    assert main(["test", "runs/mine", str(trained / "images"), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    rows = [row for row in rows_of(printed.out) if row["task"]]
    assert [int(row["images"]) for row in rows if not row["class"]] == tasks
    assert sorted(row["class"] for row in rows if row["class"]) == list("abcd")
    found = [float(row["accuracy"]) for row in rows if not row["class"]]
    assert found == pytest.approx(results["accuracy_matrix"][-1][: len(tasks)], abs=1e-3)  # the first domain is raw
    assert ("several domains, so the images count as one task" in printed.err) is (len(tasks) == 1)


def test_outputs_to_spare_are_no_classes_of_a_folder(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "test"):
        for number, name in enumerate("abcd"):  # named like the numbers of outputs
            shutil.copytree(trained / "images" / split / name, Path("images", split, str(number + 2)))
    files = ["-c", str(CONFIGS / "base.yaml"), "-c", str(CONFIGS / "data/image_folder.yaml")]
    places = ["--data.root", "images", "--data.epochs_per_task", "1", "--model.num_classes", "7"]
    assert main(["fit", *files, *OPTIONS, *places]) == 0
    results = json.loads(Path("runs/mine/results.json").read_text())
    capsys.readouterr()
    assert main(["test", "runs/mine", "images", "--format", "csv"]) == 0
    (average,) = [row for row in rows_of(capsys.readouterr().out) if not row["task"]]
    assert int(average["images"]) == 12
    assert float(average["accuracy"]) == pytest.approx(results["average_accuracy"], abs=1e-3)
    Path("images/test/6").mkdir()  # the number of an output without a class
    assert "must be named after classes of the run" in refusal(["test", "runs/mine", "images"], capsys)


def test_test_of_a_run_alone_is_on_its_own_images(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = json.loads((Path(run) / "results.json").read_text())
    before = sorted(Path(run).rglob("*"))
    assert main(["test", run]) == 0
    printed = capsys.readouterr().out
    for accuracy in results["accuracy_matrix"][-1]:
        assert str(accuracy)[:5] in printed
    assert sorted(Path(run).rglob("*")) == before


def test_classes_that_the_run_does_not_know_are_named(
    trained: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(Path("photos"), "abe")
    line = refusal(["test", run, "photos"], capsys)
    assert "must be named after classes of the run, a, b, c, d, got e" in line
    assert "with a sub-folder for each class: it does not exist" in refusal(["test", run, "nowhere"], capsys)
    assert "must be a run folder with checkpoints/last.ckpt" in refusal(["test", "nowhere"], capsys)


def test_a_changed_test_set_is_refused_with_the_command_for_other_images(
    trained: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "images", "images", ignore=shutil.ignore_patterns(".ddn_cache"))
    shutil.rmtree("images/test")
    write_images(Path("images/test"), seed=3)
    assert main(["test", run, "--data.root", "images"]) == 2
    assert "their pixels differ" in (printed := capsys.readouterr().err)
    assert "'ddn test RUN FOLDER' evaluates on other images" in printed
    assert main(["test", run, "images"]) == 0


def test_export_writes_a_file_and_says_how_well_it_agrees(run: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("model.onnx").write_text("an older one, which is replaced")
    assert main(["export", run, "-o", "model.onnx"]) == 0
    printed = capfd.readouterr()
    assert printed.out.startswith("model.onnx: uint8 images (batch, 3, 8, 8) to probabilities of 4 classes; largest ")
    assert float(printed.out.split()[-1]) <= 1e-5
    assert printed.err == ""  # torch's exporter talks, and the user need not hear it
    session = onnx_session(Path("model.onnx"))
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == list("abcd")
    assert [path.name for path in Path().iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-o", "model.pth"], "output must be a file that ends in .onnx or .pt2, got model.pth"),
        (["-o", "-"], "output must be a file that ends in .onnx or .pt2, got -"),
        (["-o", "nowhere/model.onnx"], "output must be a file in an existing folder, got nowhere/model.onnx"),
        ([], "the following arguments are required: output (see 'ddn export --help')"),
    ],
)
def test_export_refuses_in_one_line(
    run: str, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(["export", run, *options], capsys) == f"error: {expected}"


def test_export_without_onnx_says_what_to_install(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "find_spec", lambda name: None)
    line = refusal(["export", run, "-o", "model.onnx"], capsys)
    assert line.startswith(
        'error: .onnx needs onnx, onnxscript, onnxruntime, not installed: pip install -e ".[export]"'
    )


@pytest.mark.parametrize("command", ["predict", "test"])
def test_a_device_that_is_not_there_is_named(
    trained: Path, run: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal([command, run, str(trained / "images"), "--device", "abacus"], capsys)
    assert line.startswith("error: device must be one of this machine's, such as cpu, got abacus")
