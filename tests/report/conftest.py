"""A report page to look at."""

import json
import shutil
from pathlib import Path

import pytest
from odd_names import EVIL

from ddn_lightning.cli import main


@pytest.fixture(scope="session")
def report_file(recorded_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a finished run with soft labels, the same under an evil name and for the paper's cell, and broken ones."""
    folder = tmp_path_factory.mktemp("page")
    runs = folder / "runs"
    shutil.copytree(recorded_runs, runs)
    for name in (EVIL, "broken", "cifar"):
        shutil.copytree(recorded_runs / "er", runs / name, ignore=shutil.ignore_patterns("figures", "*.npz"))
    results = json.loads((runs / "cifar/results.json").read_text())
    (runs / "cifar/results.json").write_text(
        json.dumps(results | {"dataset": "cifar10", "buffer_size": 200, "plugin": '"><img src=x onerror=alert(2)>'})
    )
    (runs / "broken/results.json").write_text("{")
    (runs / "er.log").write_text("")
    output = folder / "page.html"
    assert main(["report", str(runs), str(runs / "er.log"), str(runs / "er"), "-o", str(output)]) == 0
    return output
