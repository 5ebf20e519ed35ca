"""The wheel alone is a whole package: configurations, types, the command, notebooks."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from venv import EnvBuilder

import pytest

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FIT = ["fit", "--config", "quickstart", "--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1"]
TYPED = """from ddn_lightning import ER, SmallNet
method = ER(SmallNet(width=4), num_classes=10, buffer_size=100)
method.buffer_size.capitalize()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as for a release: from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_its_files_and_nothing_else(wheel: Path) -> None:
    paths = [path for folder in ("ddn_lightning", "configs") for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = [path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts]
    expected = {name if name.startswith("ddn_lightning/") else f"ddn_lightning/{name}" for name in names}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected
    assert "ddn_lightning/py.typed" in found


def test_the_version_is_that_of_the_project_and_its_citation(wheel: Path) -> None:
    assert wheel.name == f"ddn_lightning-{VERSION}-py3-none-any.whl"
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M) == [VERSION]
    assert re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == VERSION


class Installed:
    """The wheel in an environment of its own, which borrows the other packages of this one."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        EnvBuilder(with_pip=False).create(folder / "venv")
        self.python = str(folder / "venv" / "bin" / "python")
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pip = ["-m", "pip", "--python", self.python, "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
        subprocess.run([sys.executable, *pip], check=True)
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (site / "borrowed.pth").write_text("\n".join(borrowed))  # their own .pth files, such as ours, are not read

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def ddn(self, *arguments: str) -> str:
        done = self.run(str(Path(self.python).parent / "ddn"), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


@pytest.mark.slow
def test_an_installed_wheel_trains_and_reports_in_an_empty_folder(installed: Installed) -> None:
    where = installed.run(installed.python, "-c", "import ddn_lightning; print(ddn_lightning.__file__)").stdout
    assert Path(where).is_relative_to(installed.folder.parent)  # not the clone
    assert installed.ddn("--version") == f"ddn_lightning {VERSION}\n"
    assert "method/derpp " in installed.ddn("configs")
    assert "task 5" in installed.ddn(*FIT, "--name", "first")
    installed.ddn("report", "runs", "-o", "page.html")
    assert "first" in (installed.folder / "page.html").read_text()
    assert "ddn_lightning/configs/method/er.yaml" in installed.ddn("reproduce", "digits", "--dry-run")


@pytest.mark.slow
def test_every_notebook_runs_with_an_installed_wheel(installed: Installed) -> None:
    tests = [str(ROOT / "tests" / "test_notebooks.py"), "-k", "runs_and_shows", "-n", "0", "-p", "no:cacheprovider"]
    done = installed.run(installed.python, "-m", "pytest", *tests)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_mypy_sees_the_types_of_an_installed_wheel(installed: Installed) -> None:
    (installed.folder / "typed.py").write_text(TYPED)
    done = installed.run(installed.python, "-m", "mypy", "--strict", "typed.py")
    assert re.findall(r"^typed\.py:(\d+): error: .*\[(.*)\]$", done.stdout, re.M) == [("3", "attr-defined")]
