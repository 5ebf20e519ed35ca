"""The layers in ``pyproject.toml`` are true: imports go one way, from the command line down to the errors."""

from pathlib import Path

import pytest
from importlinter.cli import lint_imports

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
PACKAGE = PYPROJECT.parent / "ddn_lightning"


def test_imports_go_down_the_layers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PYPROJECT.parent)
    assert lint_imports(config_filename=str(PYPROJECT), no_cache=True, no_logo=True) == 0


def test_no_import_is_for_type_checkers_only() -> None:
    """Whoever needs one has found a layer that is wrong; only the package itself imports its public names late."""
    found = [path for path in PACKAGE.rglob("*.py") if "TYPE_CHECKING" in path.read_text()]
    assert found == [PACKAGE / "__init__.py"]
