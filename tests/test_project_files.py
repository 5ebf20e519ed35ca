"""The files for those who join: what they name is there, and the oldest versions are tested."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_the_oldest_job_installs_every_floor_exactly() -> None:
    script = (ROOT / ".ci/oldest").read_text().partition("<< 'PYTHON'\n")[2].partition("PYTHON\n")[0]
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    floors = dict(line.split("==") for line in done.stdout.splitlines())
    extras = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in extras} - {PROJECT["name"]}  # type: ignore[index]
    assert names <= floors.keys()
    assert floors["lightning"] == "2.6.6"
