"""A report page for all tests of it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from odd_names import EVIL

from ddn_lightning.cli import main

PUBLISHED = """method,plugin,data,buffer_size,acc,fm,source,model.backbone.width
er,none,cifar10,200,36.05,49.99,their Table 1,64
"""


@pytest.fixture(scope="session")
def report_file(recorded_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of runs with and without soft labels, a published one, a narrower one, one named after a script, a broken one."""
    folder = tmp_path_factory.mktemp("page")
    runs = folder / "runs"
    shutil.copytree(recorded_runs, runs)
    for name in (EVIL, "broken", "cifar", "narrow"):
        shutil.copytree(recorded_runs / "er", runs / name, ignore=shutil.ignore_patterns("figures", "*.npz"))
    for name, width in (("cifar", 64), ("narrow", 20)):
        _change_results(runs / name, dataset="cifar10", buffer_size=200)
        _use_the_published_setting(runs / name, width)
    _change_results(runs / EVIL, plugin='"><img src=x onerror=alert(2)>')
    config = runs / EVIL / "config.yaml"
    config.write_text(config.read_text().replace("\nname: er\n", f"\nname: {json.dumps(EVIL)}\n"))
    (runs / "broken/results.json").write_text("{")
    (runs / "er.log").write_text("")
    output, reference = folder / "page.html", folder / "published.csv"
    reference.write_text(PUBLISHED)
    arguments = [str(runs), str(runs / "er.log"), str(runs / "er"), "--reference", str(reference)]
    assert main(["report", *arguments, "-o", str(output)]) == 0
    return output


def _use_the_published_setting(folder: Path, width: int) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    network = {"class_path": "ddn_lightning.ResNet18", "init_args": {"width": width}}
    config["model"]["init_args"] |= {"backbone": network, "replay_batch_size": 32}
    config["data"]["init_args"] |= {"batch_size": 32, "epochs_per_task": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def _change_results(folder: Path, **values: object) -> None:
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
