"""The files for those who join: what they name is there, and floors of dependencies have their reasons."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddn_lightning import methods
from ddn_lightning.names import METHODS

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
PROJECT: dict[str, Any] = tomllib.loads(PYPROJECT)["project"]
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
YAML_FILES = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_or_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"\]\((?!http)(.*?)\)|`((?:tests|ddn_lightning|configs|\.ci)/[\w./]*)`", text)
    assert [path for pair in named for path in pair if path and not (ROOT / path).exists()] == []


def test_the_rooms_of_the_contributors_page_are_those_of_the_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The rooms")[2].partition("## The seams")[0]
    rooms = {path.parent.name for path in (ROOT / "ddn_lightning").glob("*/__init__.py")}
    cells = re.findall(r"^\| (`.*?) \|", text, re.M)
    assert {room for cell in cells for room in re.findall(r"`(\w+)/`", cell)} == rooms


def links(page: Path) -> list[str]:
    return re.findall(r"\]\((?!http)(.*?)\)", page.read_text())


def test_the_pages_count_the_methods_right() -> None:
    bounds = {"Finetune", "Joint"}
    distilled = [name for name in METHODS if getattr(methods, name).takes_distiller()]
    assert bounds < set(METHODS)
    assert {f"docs/methods/{facts.key}.md" for facts in METHODS.values()} <= set(links(ROOT / "README.md"))
    frameworks = (ROOT / "docs" / "frameworks.md").read_text()
    assert f"| {len(METHODS) - len(bounds)}, and {len(bounds)} bounds |" in frameworks
    assert f"on {len(distilled)} of the methods" in frameworks


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda path: path.name)
def test_a_file_for_the_host_is_yaml(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text()), dict)


def test_workflows_run_the_scripts_and_tests_of_this_repository() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    paths = [ROOT / word for command in commands for word in command.split() if word.startswith((".ci/", "tests/"))]
    assert {ROOT / ".ci/run", ROOT / ".ci/oldest"} < set(paths)
    assert all(path.is_file() for path in paths)
    assert all(os.access(path, os.X_OK) for path in paths if path.parent.name == ".ci")


def test_every_floor_has_its_reason() -> None:
    stated = re.findall(r'^ *"([\w-]+)(?:\[[\w,]+\])?>=[^"]*",?(.*)$', PYPROJECT.partition("[project]")[2], re.M)
    assert len(stated) > len(PROJECT["dependencies"])
    in_group = {"onnx"}  # the reason stands beside the name of the extra
    assert [name for name, rest in stated if "#" not in rest and name not in in_group] == []


def test_the_oldest_job_installs_every_floor_exactly() -> None:
    script = (ROOT / ".ci/oldest").read_text().partition("<< 'PYTHON'\n")[2].partition("PYTHON\n")[0]
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    floors = dict(line.split("==") for line in done.stdout.splitlines())
    extras = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in extras} - {PROJECT["name"]}  # type: ignore[index]
    assert names <= floors.keys()
    assert floors["lightning"] == "2.6.6"
