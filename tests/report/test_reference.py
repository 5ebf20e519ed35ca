"""Published results stand beside the runs that have their method, data, memory and settings."""

from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.reference import Reference, read_references, reference_of
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

HEADER = "method,plugin,data,buffer_size,acc,fm,source"
CONFIG = {
    "model.init_args.backbone.class_path": "ddn_lightning.ResNet18",
    "model.init_args.backbone.init_args.width": 64,
    "data.init_args.flip": True,
    "model.init_args.momentum": 0.0,
    "data.init_args.stream": None,
}


def a_run(config: dict[str, Any] | None = None, **results: Any) -> RecordedRun:
    facts = {"method": "DERPlusPlus", "dataset": "cifar10", "buffer_size": 200, "plugin": None, **results}
    record = Results(status="complete", seed=1, tasks_finished=1, accuracy_matrix=[[50.0]], **facts)
    return RecordedRun("run", Path("run"), record, {**CONFIG, **(config or {})})


def read(*lines: str) -> list[Reference]:
    Path("published.csv").write_text("".join(f"{line}\n" for line in lines))
    return read_references(Path("published.csv"))


@pytest.mark.parametrize("method", ["derpp", "DERPlusPlus", ""])
@pytest.mark.parametrize("plugin", ["none", ""])
def test_a_row_is_found_by_method_plugin_data_and_memory(method: str, plugin: str) -> None:
    references = read(HEADER, f"{method},{plugin},cifar10,200,64.9,,Buzzega et al.", "er,,,,1,2,other")
    found = reference_of(a_run(), references)
    assert found is not None
    assert (found.acc, found.fm, found.source) == (64.9, None, "Buzzega et al.")


@pytest.mark.parametrize(
    "other", [{"dataset": "digits"}, {"buffer_size": 500}, {"method": "ER"}, {"plugin": "DataDistillNet"}]
)
def test_a_run_of_another_setting_has_no_reference(other: dict[str, Any]) -> None:
    assert reference_of(a_run(**other), read(HEADER, "derpp,none,cifar10,200,64.9,,me")) is None


@pytest.mark.parametrize(
    ("name", "value", "is_found"),
    [
        ("model.backbone.width", "64", True),
        ("model.backbone.width", "20", False),
        ("model.backbone.width", "20|64", True),
        ("model.backbone.class_path", "ResNet18", True),
        ("model.backbone.class_path", "ddn_lightning.ResNet18", True),
        ("model.backbone.class_path", "SmallNet", False),
        ("model.momentum", "0", True),
        ("data.flip", "true", True),
        ("data.flip", "1", False),
        ("data.stream", "null", True),
        ("data.unknown", "1", False),
        ("data.unknown", "", True),
    ],
)
def test_other_columns_are_settings(name: str, value: str, is_found: bool) -> None:
    references = read(f"{HEADER},{name}", f"derpp,none,cifar10,200,64.9,,me,{value}")
    assert (reference_of(a_run(), references) is not None) == is_found


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["method,acc"], "published.csv must have the columns method,plugin,data"),
        ([HEADER, "er,none,digits,50,high,,me"], "line 2: acc must be a number in percent, got high"),
        ([HEADER, "er,none"], "line 2: expected a value for each column"),
    ],
)
def test_errors_in_the_file_are_named(lines: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(*lines)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigurationError, match="reference must be a CSV file in UTF-8, got nowhere.csv"):
        read_references(Path("nowhere.csv"))
