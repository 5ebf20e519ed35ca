"""The shipped configuration files are found by their names."""

import shutil
from pathlib import Path

import pytest

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce import shipped_configs
from ddn_lightning.reproduce.shipped_configs import description_of, find_config, shipped_folder, shipped_names

CONFIGS = Path(__file__).parents[2] / "configs"


def test_a_clone_finds_the_files_at_its_top_level() -> None:
    assert shipped_folder() == CONFIGS
    paths = [path for path in CONFIGS.rglob("*.yaml") if path.parent.name not in ("tune", "plan")]
    files = [str(path.relative_to(CONFIGS))[:-5] for path in paths]
    assert sorted(shipped_names()) == sorted(files)


def test_an_installed_package_finds_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONFIGS, tmp_path / "ddn_lightning" / "configs")
    module = tmp_path / "ddn_lightning" / "reproduce" / "shipped_configs.py"
    monkeypatch.setattr(shipped_configs, "__file__", str(module))
    assert find_config("method/derpp") == str(tmp_path / "ddn_lightning" / "configs" / "method" / "derpp.yaml")


@pytest.mark.parametrize("name", shipped_names())
def test_each_file_says_in_its_first_line_what_it_is(name: str) -> None:
    text = (CONFIGS / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    assert description_of(text).endswith((".", ":"))


@pytest.mark.parametrize("value", ["-", "{seed_everything: 1}", "own.yaml", "quickstart"])
def test_files_of_the_current_folder_and_yaml_itself_stay_as_they_are(value: str) -> None:
    Path("own.yaml").touch()
    Path("quickstart").touch()
    assert find_config(value) == value


def test_a_folder_does_not_hide_a_name() -> None:
    Path("quickstart").mkdir()
    assert find_config("quickstart") == str(CONFIGS / "quickstart.yaml")


def test_the_path_in_a_clone_means_the_shipped_file() -> None:
    assert find_config("configs/quickstart.yaml") == str(CONFIGS / "quickstart.yaml")


@pytest.mark.parametrize(
    ("value", "similar"),
    [
        ("quickstrat", " (did you mean quickstart?)"),
        ("derpp", " (did you mean method/derpp?)"),
        ("configs/method/derp.yaml", " (did you mean method/derpp?)"),
        ("online", " (did you mean recipe/online or setting/online?)"),
        ("nothing/like/it.yaml", ""),
    ],
)
def test_an_unknown_name_suggests_the_nearest(value: str, similar: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        find_config(value)
    assert str(refusal.value) == f"config must be a file, or a name that 'ddn configs' lists, got {value}{similar}"
