"""Ranges are read from YAML, and mistakes in them are named."""

from pathlib import Path

import pytest
import yaml

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.tune.ranges import Range, ranges_of, read_ranges

CONFIGS = Path(__file__).parents[2] / "configs"


def test_ranges_are_those_of_all_of_the_method_and_of_the_plugin() -> None:
    assert [one.option for one in ranges_of(CONFIGS, "er", "none")] == ["model.lr"]
    options = [one.option for one in ranges_of(CONFIGS, "derpp", "ddn")]
    assert options == [
        "model.lr",
        "model.alpha",
        "model.beta",
        *(f"model.distiller.{n}" for n in ("lr", "alpha", "beta")),
    ]


def test_ranges_of_a_users_class_are_in_the_current_folder() -> None:
    Path("mine.MyMethod.yaml").write_text("model.gain: {low: 0.5, high: 2.0}\n")
    Path("mine.MyLabels.yaml").write_text("model.distiller.smooth: {low: 0.1, high: 0.5}\n")
    Path("er.yaml").write_text("model.replay_weight: {low: 1.0, high: 2.0}\n")  # of no user's class
    own = ranges_of(CONFIGS, "mine.MyMethod", "mine.MyLabels")
    assert [one.option for one in own] == ["model.lr", "model.gain", "model.distiller.smooth"]
    assert [one.option for one in ranges_of(CONFIGS, "er", "none")] == ["model.lr"]


def test_the_weights_of_ddn_and_of_its_hard_control_have_the_same_range() -> None:
    hard = {one.option: one.as_plain() for one in ranges_of(CONFIGS, "er", "hard")}
    ddn = {one.option: one.as_plain() for one in ranges_of(CONFIGS, "er", "ddn")}
    assert hard["model.old_memory_weight"] == ddn["model.distiller.alpha"]


def test_every_kind_of_range_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("a: {low: 1, high: 9}\nb: {low: 0.1, high: 1, log: true}\nc: {choices: [separate, 2, null]}\n")
    assert read_ranges(path) == [
        Range("a", 1, 9),
        Range("b", 0.1, 1, log=True),
        Range("c", choices=("separate", 2, None)),
    ]
    assert [one.is_integer for one in read_ranges(path)[:2]] == [True, False]


@pytest.mark.parametrize(
    "given",
    [
        "0.1",
        "{low: 0.1}",
        "{low: 0.1, high: 1, hihg: 2}",
        "{low: 1, high: 0.1}",
        "{low: a, high: b}",
        "{low: true, high: 3}",
        "{low: 0, high: .inf}",
        "{low: 0, high: 1, log: true}",
        "{low: 1, high: 2, log: 1}",
        "{choices: [1]}",
        "{choices: ab}",
        "{choices: [1, [2]]}",
        "{choices: [1, 2], log: true}",
    ],
)
def test_a_wrong_range_is_named(given: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"lr: {given}")
    with pytest.raises(ConfigurationError) as caught:
        read_ranges(path)
    assert str(caught.value).startswith(f"{path}: lr must be {{low: 0.01, high: 0.1}} with low below high")
    assert str(caught.value).endswith(f", got {yaml.safe_load(given)}")


def test_a_method_without_ranges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected ranges for er in .*base.yaml or .*er.yaml, got no file"):
        ranges_of(tmp_path, "er", "none")
