"""A report page for all tests of it."""

import json
import shutil
from pathlib import Path

import pytest
from odd_names import EVIL

from ddn_lightning.cli import main


@pytest.fixture(scope="session")
def report_file(recorded_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of runs with and without soft labels, of the paper's cell, with a script as its name, and broken."""
    folder = tmp_path_factory.mktemp("page")
    runs = folder / "runs"
    shutil.copytree(recorded_runs, runs)
    for name in (EVIL, "broken", "cifar"):
        shutil.copytree(recorded_runs / "er", runs / name, ignore=shutil.ignore_patterns("figures", "*.npz"))
    _change_results(runs / "cifar", dataset="cifar10", buffer_size=200)
    _change_results(runs / EVIL, plugin='"><img src=x onerror=alert(2)>')
    config = runs / EVIL / "config.yaml"
    config.write_text(config.read_text().replace("\nname: er\n", f"\nname: {json.dumps(EVIL)}\n"))
    (runs / "broken/results.json").write_text("{")
    (runs / "er.log").write_text("")
    output = folder / "page.html"
    assert main(["report", str(runs), str(runs / "er.log"), str(runs / "er"), "-o", str(output)]) == 0
    return output


def _change_results(folder: Path, **values: object) -> None:
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
