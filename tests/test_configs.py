"""Every shipped YAML, and every combination of one file per axis, is understood by the command line."""

import itertools
from pathlib import Path

import pytest
import yaml

from ddn_lightning.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
AXES = {axis: sorted((CONFIGS / axis).glob("*.yaml")) for axis in ("method", "data", "setting")}
COMBINATIONS = list(itertools.product(*AXES.values()))


def parsed(
    capsys: pytest.CaptureFixture[str], *files: Path, options: tuple[str, ...] = ()
) -> dict[str, dict[str, dict]]:
    configs = [argument for file in files for argument in ("-c", str(file))]
    with pytest.raises(SystemExit) as exit_info:
        main(["fit", *configs, *options, "--print_config"])
    assert exit_info.value.code == 0
    settings: dict[str, dict[str, dict]] = yaml.safe_load(capsys.readouterr().out)
    return settings


def test_there_is_a_file_for_each_value_of_each_axis() -> None:
    assert [path.stem for path in AXES["data"]] == ["cifar10", "cifar100", "digits", "image_folder", "tiny_imagenet"]
    assert [path.stem for path in AXES["setting"]] == ["offline", "online"]
    assert {"er", "finetune", "joint"} <= {path.stem for path in AXES["method"]}


@pytest.mark.parametrize("files", COMBINATIONS, ids=lambda files: "-".join(path.stem for path in files))
def test_every_combination_is_parsed(files: tuple[Path, ...], capsys: pytest.CaptureFixture[str]) -> None:
    settings = parsed(capsys, CONFIGS / "base.yaml", *files)
    for file in files:
        stated = yaml.safe_load(file.read_text())
        for part in ("model", "data"):
            assert stated.get(part, {}).get("class_path", "") in settings[part]["class_path"]
            for name, value in stated.get(part, {}).get("init_args", {}).items():
                found = settings[part]["init_args"][name]
                assert found == value or found["class_path"].endswith(value["class_path"])


def test_the_quick_start_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    settings = parsed(capsys, CONFIGS / "quickstart.yaml")
    assert settings["model"]["class_path"] == "ddn_lightning.ER"


def test_single_options_win_over_files(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model.buffer_size", "7", "--model.backbone.width", "20")
    settings = parsed(capsys, CONFIGS / "base.yaml", CONFIGS / "data/cifar10.yaml", options=options)
    assert settings["model"]["init_args"]["buffer_size"] == 7
    assert settings["model"]["init_args"]["backbone"]["init_args"]["width"] == 20
