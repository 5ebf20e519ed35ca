"""What the front page and the manual say is done here, from their own text."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from documents import PAGES, README, ROOT, TEXT, blocks, commands, generated, run
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional
from torchvision.transforms.functional import to_pil_image

from ddn_lightning import Replay, SplitDigits
from study.method_table import method_table

COMMANDS = commands(TEXT)
OWN_MODULES = {
    "dark": "class DarkReplay",
    "layer": "class OneLayer",
    "plain": "class PlainReplay",
}  # saved by the reader
NEEDS_DATA = ("cifar", "image_folder")  # understood, but not run: there is nothing to run on


@pytest.fixture(autouse=True)
def _as_in_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for module, content in OWN_MODULES.items():
        (tmp_path / f"{module}.py").write_text(python_block(content))
        sys.modules.pop(module, None)
    monkeypatch.syspath_prepend(tmp_path)


def python_block(containing: str) -> str:
    found = {block for block in blocks(TEXT, "python") if containing in block}
    assert len(found) == 1
    return found.pop()


def test_exactly_two_commands_set_up_and_run() -> None:
    installs = [line for line in README.splitlines() if line.startswith("pip install")]
    assert installs == [
        "pip install -e . && ddn fit --config configs/quickstart.yaml",
        'pip install -e ".[dev]" && pytest',
    ]


PLANS = ("reproduce digits", "reproduce collection --seeds")
OF_RUNS = ("ddn report", "ddn compare", "photos/", "ddn export")
HAS_ITS_OWN_TEST = ("trainer.devices 2", *PLANS, "ddn tune", *OF_RUNS)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.startswith("ddn") and not any(name in c for name in HAS_ITS_OWN_TEST)]
)
def test_every_command_works(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if any(name in command for name in NEEDS_DATA):
        assert run(f"{command} {'--dry-run' if 'reproduce' in command else '--print_config'}") == 0
        return
    assert run(command) == 0
    if "--dry-run" in command:
        assert "CPU h" in capsys.readouterr().out
        return
    if command.startswith("ddn fit") and not any(word in command for word in ("help", "--print_config")):
        assert list(Path("runs").glob("*/results.json"))


def test_the_shown_configuration_is_part_of_the_printed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ddn fit -c quickstart --model.buffer_size 50 --print_config") == 0
    printed = yaml.safe_load(capsys.readouterr().out)["model"]
    shown = yaml.safe_load(blocks(PAGES["docs/how_to/command_line.md"], "yaml")[0])["model"]
    assert printed["class_path"] == shown["class_path"]
    assert shown["init_args"].items() <= printed["init_args"].items()


def test_nothing_but_known_programs_is_asked_for() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"pip", "ddn", "pytest", "python", "torchrun"}


def test_the_table_shows_what_the_quick_start_gives() -> None:
    assert run("ddn fit --config configs/quickstart.yaml") == 0
    (results,) = Path("runs").glob("*/results.json")
    measured = json.loads(results.read_text())["accuracy_matrix"]
    rows = re.findall(r"│ task \d  │(.*)│", README)
    assert len(rows) == 5
    for stage, row in enumerate(rows):
        shown = [float(cell) for cell in row.split("│")[: stage + 1]]
        assert shown == pytest.approx(measured[stage][: stage + 1], abs=8)  # machines may round differently


ROWS = re.findall(r"^\| .*?\| (\d+\.\d+) ± (\d+\.\d+) \|.*?`(ddn fit .*?--seed_everything \d+)` \|$", TEXT, re.M)


# the last is ER, which has a row without --model too
CONTROLS = ("replay_weight", "old_memory_weight", "update_every", "LabelSmoothing", "quickstart_ddn", "--model ER ")


@pytest.mark.parametrize(
    ("mean", "deviation", "command"),
    [pytest.param(*row, marks=[pytest.mark.slow] if any(c in row[2] for c in CONTROLS) else []) for row in ROWS],
)
def test_each_measured_row_is_what_its_command_gives(mean: str, deviation: str, command: str) -> None:
    assert run(command) == 0
    (results,) = Path("runs").glob("*/results.json")
    measured = json.loads(results.read_text())["average_accuracy"]
    assert abs(measured - float(mean)) < 4 * float(deviation)


def shown(block: str) -> list[list[str]]:
    """The cells of a table that ``ddn reproduce`` has printed."""
    header, _, *rows = (line.split(" | ") for line in generated(TEXT, block).splitlines())
    assert all(len(row) == len(header) for row in rows)
    return rows


@pytest.mark.slow
def test_reproducing_the_collection_gives_the_table_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ddn reproduce collection --methods er --plugins none --seeds 11") == 0
    *_, measured = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    (expected,) = [row for row in shown("collection") if row[3] == "ER"]
    mean, _, deviation, *_ = expected[4].split()
    assert measured[:4] == expected[:4]
    assert abs(float(measured[4].split()[0]) - float(mean)) < 5 + 4 * float(deviation)  # of few seeds


def test_reproducing_digits_gives_the_table_shown(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = "--seeds 11 12 13 14 15"
    (command,) = [command for command in COMMANDS if f"digits --methods er --plugins none ddn {seeds} " in command]
    assert run(command.replace(f"none ddn {seeds}", "none --seeds 11")) == 0  # DDN's row is tested above
    *_, measured = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    plain, distilled = shown("digits")
    assert len(plain) == len(measured)
    assert measured[:4] == plain[:4]
    mean, _, deviation, _ = plain[4].split()
    assert abs(float(measured[4].split()[0]) - float(mean)) < 4 * float(deviation)
    for row in (plain, distilled):
        assert f"| {row[4].removesuffix(' (5)')} | {row[5].strip(' |').removesuffix(' (5)')} | `ddn fit" in TEXT


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("ddn tune")])
def test_a_search_is_planned_as_written(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{command} --dry-run") == 0
    assert "--data.closed_test true" in capsys.readouterr().out


def test_a_page_is_made_and_opened(recorded_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    shutil.copytree(recorded_runs / "er", "runs/er")
    (command,) = [command for command in COMMANDS if command.startswith("ddn report runs ")]
    assert run(command) == 0
    assert opened == [Path("page.html").resolve().as_uri()]
    assert "ER on digits" in Path("page.html").read_text()
    (command,) = [command for command in COMMANDS if command.startswith("ddn compare ")]
    assert run(command) == 0


def test_a_model_is_taken_along_by_three_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [c for c in COMMANDS if "runs/mine" in c and ("photos/" in c or "export" in c)]
    assert [c.split()[1] for c in commands] == ["predict", "test", "export"]
    assert run("ddn fit --config configs/quickstart.yaml --name mine") == 0
    images, labels = SplitDigits().load(train=False)
    for label in range(10):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True)
        for index, image in enumerate(images[labels == label][:3]):
            to_pil_image(image).save(folder / f"{index}.png")
    for command in commands:
        assert run(command) == 0
    assert len((tmp_path / "classes.csv").read_text().splitlines()) == 31
    assert (tmp_path / "model.onnx").is_file()


def test_all_notebooks_are_listed() -> None:
    listed = re.findall(r"\]\(\.\./notebooks/([^)]*ipynb)\) \|", TEXT)
    assert listed == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.slow] if command.startswith("torchrun") else [])
        for command in COMMANDS
        if "trainer.devices 2" in command
    ],
)
def test_several_devices_give_what_one_does(command: str) -> None:
    short = ["--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1"]
    program, *arguments = command.split()
    bin_folder = Path(sys.executable).parent
    subprocess.run([bin_folder / program, *arguments, *short], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run(shlex.join(["ddn", "fit", "--config", "configs/quickstart.yaml", "--name", "one", *short])) == 0
    one, several = (json.loads(path.read_text()) for path in sorted(Path("runs").glob("*/results.json")))
    assert one["accuracy_matrix"] == several["accuracy_matrix"]


def test_the_resume_line_goes_on() -> None:
    (command,) = [command for command in COMMANDS if command.endswith("--name mine --ckpt_path auto")]
    assert run(f"{command} --trainer.max_steps 30 --save_every_n_minutes 0") == 0
    assert run(command) == 0
    assert run("ddn fit --config configs/quickstart.yaml --name whole") == 0
    first, second = (json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("mine", "whole"))
    assert first["accuracy_matrix"] == second["accuracy_matrix"]


@pytest.mark.filterwarnings("ignore:.*tensorboardX. has been removed")  # Lightning where TensorBoard is not installed
def test_the_python_example_runs() -> None:
    namespace: dict[str, object] = {}
    exec(python_block("ER(SmallNet(), num_classes=10, buffer_size=100)\ntrainer"), namespace)
    matrix = namespace["method"].accuracy_matrix  # type: ignore[attr-defined]
    assert isinstance(matrix, torch.Tensor)
    assert matrix[-1].mean() > 60


class MyModule(LightningModule):
    """A reader's own module, which knows nothing of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader`")  # which Lightning does not need here
def test_the_readers_own_module_remembers_with_the_callback() -> None:
    quiet = partial(Trainer, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    namespace: dict[str, object] = {"Trainer": partial(quiet, enable_checkpointing=False), "MyModule": MyModule}
    seed_everything(0)
    exec(python_block("MyModule()"), namespace)
    rehearsed = namespace["replay"].accuracy_matrix  # type: ignore[attr-defined]
    forgotten = Replay(buffer_size=1)
    quiet(max_epochs=-1, callbacks=[forgotten], enable_checkpointing=False, log_every_n_steps=5).fit(
        MyModule(), SplitDigits(epochs_per_task=5)
    )
    assert rehearsed[-1].mean() > forgotten.accuracy_matrix[-1].mean() + 20


def test_the_distiller_example_builds() -> None:
    namespace: dict[str, object] = {}
    exec(python_block("DERPlusPlus("), namespace)
    assert namespace["method"].distiller.beta == 0.9  # type: ignore[attr-defined]


def test_a_new_method_takes_less_than_forty_lines_and_learns() -> None:
    assert len(python_block("class DarkReplay").splitlines()) < 40
    assert run("ddn fit --config configs/quickstart.yaml --model dark.DarkReplay --name dark") == 0
    assert json.loads(Path("runs/dark/results.json").read_text())["average_accuracy"] > 30  # fine-tuning has 19


def test_the_installed_command_finds_a_method_where_it_is_run() -> None:
    (command,) = [command for command in COMMANDS if "dark.DarkReplay" in command]
    program, *arguments = command.split()
    subprocess.run([Path(sys.executable).parent / program, *arguments, "--print_config"], check=True)


def test_every_file_and_section_that_the_front_page_links_is_there() -> None:
    linked = re.findall(r"\]\((?!http)(.*?)\)", README)
    assert linked
    for path, _, section in (link.partition("#") for link in linked):
        assert (ROOT / path).exists()
        headings = re.findall(r"^## (.*)$", (ROOT / path).read_text(), re.M) if section else []
        assert section in ["", *(heading.lower().replace(" ", "-") for heading in headings)]


def test_the_table_of_methods_is_made_from_the_classes() -> None:
    assert generated(PAGES["docs/methods/index.md"], "methods") == method_table()
