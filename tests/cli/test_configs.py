"""The command line parses every shipped YAML and every combination of one file per axis."""

import itertools
import json
import operator
from functools import reduce
from pathlib import Path

import pytest
import yaml

from ddn_lightning.cli import main
from ddn_lightning.cli.parser import class_names

CONFIGS = Path(__file__).parents[2] / "configs"
AXES = {axis: sorted((CONFIGS / axis).glob("*.yaml")) for axis in ("method", "data", "setting")}
PLUGINS = sorted((CONFIGS / "plugin").glob("*.yaml"))
NETWORKS = sorted((CONFIGS / "network").glob("*.yaml"))
STATISTICS = CONFIGS / "statistics"
COMBINATIONS = [*itertools.product(*AXES.values()), *itertools.product(AXES["method"], PLUGINS)]
COMBINATIONS += [(AXES["method"][0], network) for network in NETWORKS]
# files of an axis differ in their own values only: every file by default, all combinations with the slow tests
FAST = ("er", "cifar10", "online", "ddn")


def is_fast(files: tuple[Path, ...]) -> bool:
    """Whether at most one of the files is another than the one that stands for its axis."""
    return sum(path.stem not in FAST for path in files) <= 1


def parsed(
    capsys: pytest.CaptureFixture[str], *files: Path, options: tuple[str, ...] = ()
) -> dict[str, dict[str, dict]]:
    configs = [argument for file in files for argument in ("-c", str(file))]
    with pytest.raises(SystemExit) as exit_info:
        main(["fit", *configs, *options, "--print_config"])
    assert exit_info.value.code == 0
    settings: dict[str, dict[str, dict]] = yaml.safe_load(capsys.readouterr().out)
    return settings


def test_every_exported_class_has_a_file_of_its_axis() -> None:
    def chosen(files: list[Path], *keys: str) -> list[str]:
        return sorted({reduce(operator.getitem, keys, yaml.safe_load(file.read_text())) for file in files})

    assert chosen(AXES["method"], "model", "class_path") == class_names("model")
    data = [name for name in class_names("data") if name != "GrownSequence"]  # which ddn fit --grow makes
    assert chosen(AXES["data"], "data", "class_path") == data
    outer = ("model", "init_args", "backbone")
    cached = [path for path in NETWORKS if "FrozenFeatures" in path.read_text()]
    networks = chosen(NETWORKS, *outer, "class_path") + chosen(cached, *outer, "init_args", "backbone", "class_path")
    assert sorted(set(networks)) == class_names("backbone")
    plugins = [path for path in PLUGINS if path.stem != "hard"]  # a control without a distiller
    assert chosen(plugins, "model", "init_args", "distiller", "class_path") == class_names("distiller")


@pytest.mark.parametrize(
    "files",
    [pytest.param(files, marks=[] if is_fast(files) else [pytest.mark.slow]) for files in COMBINATIONS],
    ids=lambda files: "-".join(path.stem for path in files),
)
def test_every_combination_is_parsed(files: tuple[Path, ...], capsys: pytest.CaptureFixture[str]) -> None:
    settings = parsed(capsys, CONFIGS / "base.yaml", *files)
    for file in files:
        stated = yaml.safe_load(file.read_text())
        for part in ("model", "data"):
            assert stated.get(part, {}).get("class_path", "") in settings[part]["class_path"]
            for name, value in stated.get(part, {}).get("init_args", {}).items():
                found = settings[part]["init_args"][name]
                assert found == value or found["class_path"].endswith(value["class_path"])


def test_the_quick_starts_stand_alone_and_differ_in_the_plug_in_only(capsys: pytest.CaptureFixture[str]) -> None:
    plain = parsed(capsys, CONFIGS / "quickstart.yaml")
    distilled = parsed(capsys, CONFIGS / "quickstart_ddn.yaml")
    assert plain["model"]["class_path"] == "ddn_lightning.ER"
    assert distilled["model"]["init_args"].pop("distiller")["class_path"] == "ddn_lightning.DataDistillNet"
    assert plain["model"]["init_args"].pop("distiller") is None
    assert plain == distilled


def test_a_plug_in_file_keeps_the_values_of_the_method(capsys: pytest.CaptureFixture[str]) -> None:
    files = [CONFIGS / name for name in ("base.yaml", "method/derpp.yaml", "data/cifar100.yaml", "plugin/ddn.yaml")]
    settings = parsed(capsys, *files, options=("--model.distiller.alpha", "0"))
    arguments = settings["model"]["init_args"]
    assert (arguments["alpha"], arguments["buffer_size"], arguments["distiller"]["init_args"]["alpha"]) == (
        0.2,
        2000,
        0,
    )


def test_single_options_override_files(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model.buffer_size", "7", "--model.backbone.width", "20")
    settings = parsed(capsys, CONFIGS / "base.yaml", CONFIGS / "data/cifar10.yaml", options=options)
    assert settings["model"]["init_args"]["buffer_size"] == 7
    assert settings["model"]["init_args"]["backbone"]["init_args"]["width"] == 20


def test_the_last_file_chooses_the_statistics_and_keeps_the_users_callbacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("trainer:\n  callbacks:\n    - class_path: lightning.pytorch.callbacks.LearningRateMonitor\n")
    files = {path.stem: path for path in STATISTICS.glob("*.yaml")}
    assert files.keys() == {"running", "memory", "both"}
    for name, file in files.items():
        for order in ([own, files["memory"], file], [files["both"], file, own]):
            settings = parsed(capsys, CONFIGS / "quickstart.yaml", *order)
            assert settings["forgetting"]["statistics"] == name
            assert settings["trainer"]["callbacks"][0]["class_path"].endswith("LearningRateMonitor")


def test_the_recipe_is_plain_replay_with_statistics_of_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    base, data = CONFIGS / "base.yaml", CONFIGS / "data/cifar10.yaml"
    recipe = parsed(capsys, base, data, CONFIGS / "recipe/online.yaml")
    axes = parsed(
        capsys, base, CONFIGS / "method/er.yaml", data, CONFIGS / "setting/online.yaml", STATISTICS / "memory.yaml"
    )
    assert recipe == axes


STREAMS = sorted((CONFIGS / "stream").glob("*.yaml"))
MANY = [(CONFIGS / "method/er.yaml", CONFIGS / "data/digits.yaml", file) for file in STREAMS]
MANY += [(method, CONFIGS / "stream/blurry.yaml") for method in AXES["method"]]
MANY += [(data, CONFIGS / "stream/blurry.yaml") for data in AXES["data"]]
MANY += [(plugin, CONFIGS / "stream/blurry.yaml") for plugin in PLUGINS]


def test_every_stream_has_a_file() -> None:
    files = [yaml.safe_load(file.read_text())["data"]["init_args"]["stream+"] for file in STREAMS]
    assert sorted(one["class_path"] for (one,) in files) == class_names("stream")


@pytest.mark.parametrize(
    "files",
    [pytest.param(files, marks=[] if files in MANY[: len(STREAMS)] else [pytest.mark.slow]) for files in MANY],
    ids=lambda files: "-".join(path.stem for path in files),
)
def test_streams_are_parsed_with_every_method_data_and_plug_in(
    files: tuple[Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = parsed(capsys, CONFIGS / "base.yaml", *files)["data"]["init_args"]["stream"]
    (stated,) = yaml.safe_load(files[-1].read_text())["data"]["init_args"]["stream+"]
    assert found["class_path"].endswith(f".{stated['class_path']}")
    assert stated.get("init_args", {}).items() <= found.get("init_args", {}).items()


def test_files_of_streams_are_applied_in_their_order_and_options_change_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [CONFIGS / "base.yaml", *(CONFIGS / f"stream/{name}.yaml" for name in ("long_tail", "label_noise"))]
    settings = parsed(capsys, *files, options=("--data.stream.share", "0.4"))
    first, second = settings["data"]["init_args"]["stream"]
    assert first["class_path"].endswith("LongTail")
    assert second["init_args"] == {"share": 0.4, "kind": "symmetric"}


@pytest.mark.parametrize("names", [("long_tail", "label_noise"), ("drift",), ("rotated",)])
def test_the_command_learns_streams_of_files(names: tuple[str, ...]) -> None:
    files = [argument for name in names for argument in ("-c", str(CONFIGS / f"stream/{name}.yaml"))]
    short = ["--data.drop_last=false", "--data.epochs_per_task=1", "--trainer.enable_progress_bar=false"]
    quick = [
        "--trainer.log_every_n_steps=1",
        "--trainer.limit_train_batches=2",
        "--trainer.limit_val_batches=1",
        "--runs=runs",
        "--name=run",
    ]
    assert main(["fit", "-c", str(CONFIGS / "quickstart.yaml"), *files, *short, *quick]) == 0
    results = json.loads(Path("runs/run/results.json").read_text())
    kinds = {"long_tail": "LongTail", "label_noise": "LabelNoise", "drift": "GaussianDrift", "rotated": "RotatedImages"}
    assert results["status"] == "complete"
    assert results["dataset"] == f"digits ({', '.join(kinds[name] for name in names)})"  # not comparable with digits
