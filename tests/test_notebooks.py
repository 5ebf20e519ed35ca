"""Every notebook is run here from its first cell to its last, with small numbers in its knob cell."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from ddn_lightning import SplitDigits

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL: dict[str, dict[str, Any]] = {
    "01_forgetting_in_five_minutes": {"EPOCHS": 1, "BUFFER_SIZE": 20},
    "02_what_the_reservoir_keeps": {"REPETITIONS": 20, "EPOCHS": 1, "BUFFER_SIZE": 20},
    "03_the_hypergradient": {"WIDTH": 2, "BATCH": 12, "COMPARED": 3},
    "04_ddn_on_any_method": {"EPOCHS": 1},
    "05_bring_your_own": {"EPOCHS": 1, "PER_CLASS": 16, "IMAGE_SIZE": 8},
    "06_read_the_results": {"EPOCHS": 1},
    "07_what_is_behind_the_gain": {"EPOCHS": 1, "SEEDS": range(2), "WIDTH": 4},
    "08_keep_your_module": {"EPOCHS": 1, "BUFFER_SIZE": 20},
    "09_a_pretrained_network": {"EPOCHS": 1, "NETWORK_SIZE": 32, "PER_CLASS": 16},
}
FIGURES = {"01": 3, "02": 3, "03": 2, "04": 5, "05": 3, "06": 4, "07": 3, "08": 3, "09": 1}


def cells(path: Path, kind: str = "code") -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def run(path: Path, knobs: dict[str, Any]) -> list[object]:
    """What the cells show: the value of each one's last line, and what is displayed. Magic is for Jupyter alone."""
    shown: list[object] = []
    namespace: dict[str, Any] = {"display": shown.append, "__name__": "__main__"}
    for cell in cells(path):
        source = re.sub(r"^%.*$", "", "".join(cell["source"]), flags=re.M)
        tree = ast.parse(source)
        last = tree.body[-1]
        value = ast.Expression(tree.body.pop().value) if isinstance(last, ast.Expr) else None  # type: ignore[attr-defined]
        exec(compile(tree, path.name, "exec"), namespace)
        if value is not None:
            shown.append(eval(compile(value, path.name, "eval"), namespace))
        if "parameters" in cell["metadata"].get("tags", ()):
            unknown = knobs.keys() - namespace.keys()
            assert not unknown
            namespace.update(knobs)
    return shown


@pytest.fixture(autouse=True)
def _usual_type() -> Any:
    yield
    torch.set_default_dtype(torch.float32)  # a notebook that fails midway may leave another


def test_each_of_them_is_run() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(SMALL)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_its_figures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = SplitDigits.load
    monkeypatch.setattr(SplitDigits, "load", lambda self, train: tuple(part[::4] for part in load(self, train)))
    figures = [value for value in run(path, SMALL[path.stem]) if isinstance(value, Figure)]
    assert len(figures) == FIGURES[path.stem[:2]]
    assert all(figure.axes for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_as_it_is(path: Path) -> None:
    assert run(path, {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_short_and_without_output(path: Path) -> None:
    code = cells(path)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len(code) + len(cells(path, "markdown")) <= 25
    assert sum("parameters" in cell["metadata"].get("tags", ()) for cell in code) == 1
    linked = re.findall(r"\]\((\d\d_.*?)\)", path.read_text())
    assert all((path.parent / name).exists() for name in linked)
