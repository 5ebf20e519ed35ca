"""The cost of a page is linear in the number of runs, and the page lists what it leaves out."""

import json
import shutil
import sys
from pathlib import Path
from types import FrameType

import pytest
from matplotlib.figure import Figure

from ddn_lightning.cli.report_command import read_runs
from ddn_lightning.report import page as page_module
from ddn_lightning.report.figures import comparison_figures
from ddn_lightning.report.page import page
from ddn_lightning.runs.recorded_run import RecordedRun

FIGURES = [name for name in vars(comparison_figures) if name.endswith("_figure")]


def many(number: int, recorded_runs: Path) -> Path:
    """Runs of two methods with many seeds and values of alpha."""
    folder = Path(f"runs{number}")
    for seed in range(number):
        name = ("er", "ddn")[seed % 2]
        run = shutil.copytree(
            recorded_runs / name, folder / f"run{seed}", ignore=shutil.ignore_patterns("checkpoints", "figures")
        )
        results = json.loads((run / "results.json").read_text()) | {"seed": seed}
        (run / "results.json").write_text(json.dumps(results))
        config = (run / "config.yaml").read_text().replace(f"\nname: {name}\n", f"\nname: run{seed}\n")
        alpha = config.replace("alpha: 1.0", f"alpha: {1 + seed}.0")
        (run / "config.yaml").write_text(alpha.replace("seed_everything: ", f"seed_everything: {seed}"))
    return folder


def calls_for_a_page(folder: Path) -> int:
    """Number of Python function calls, which does not depend on the machine."""
    runs = read_runs([folder])
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        page(runs, "test")
    finally:
        sys.setprofile(None)
    return count


def test_the_cost_of_a_page_grows_linearly_with_its_runs(recorded_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FIGURES:  # their number does not depend on the number of runs
        monkeypatch.setattr(comparison_figures, name, lambda *_: Figure())
    monkeypatch.setattr(page_module, "pictures_of", lambda run: [])
    monkeypatch.setattr(page_module, "as_svg", lambda figure: "<svg></svg>")
    calls_for_a_page(many(4, recorded_runs))  # fills caches, such as templates
    few, more = (calls_for_a_page(many(number, recorded_runs)) for number in (20, 80))
    assert more < 5 * few


def test_the_page_lists_what_it_leaves_out(recorded_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[RecordedRun] = []
    monkeypatch.setattr(page_module, "pictures_of", lambda run: drawn.extend([run]) or [])
    text = page(read_runs([many(14, recorded_runs)]), "test")
    assert len(drawn) == 5
    for expected in (
        "With figures for the first 5 of 14 runs",
        "Accuracy of each task over training, mean of each group (number of runs)",
        "Which class is taken for which, 2 of 14 runs: ER, seed 0; ER + DDN, alpha 2.0, seed 1",
        "Its figures: ddn report runs14/run9",
    ):
        assert expected in text
