"""A search is written, read again, and shown on a page of its own."""

from pathlib import Path

import pytest

from ddn_lightning.cli import main
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.figures.tuning import importance_figure, slice_figure
from ddn_lightning.report.paper import Cell
from ddn_lightning.report.search_page import search_page
from ddn_lightning.report.tuning import ArmRecord, SearchRecord, TrialRecord, read_search, write_search

RANGES = {"model.lr": {"low": 0.01, "high": 1.0, "log": True}, "model.batches": {"choices": ["separate", "<b>"]}}


def trial(state: str, score: float, rate: float, batches: str = "separate") -> TrialRecord:
    return TrialRecord(state, score, {"model.lr": rate, "model.batches": batches}, (90.0, score))


ARM = ArmRecord(
    Cell("offline", "digits", 100, "er", "ddn"),
    RANGES,
    (
        trial("complete", 60.0, 0.1),
        trial("pruned", 80.0, 0.5),
        trial("diverged", 0.0, 1.0),
        trial("complete", 70.0, 0.2, "<b>"),
    ),
    {"model.lr": 0.9, "model.batches": 0.1},
)
EMPTY = ArmRecord(Cell("offline", "digits", 100, "er"), RANGES, (), {})
SEARCH = SearchRecord("mine", "ddn tune <x>", "whole sequence; peeks: all", 4, (1000,), {"optuna": "5"}, (ARM, EMPTY))


def test_the_best_trial_is_a_complete_one() -> None:
    assert ARM.best == 3
    assert EMPTY.best is None
    assert (ARM.name, ARM.title, ARM.count("pruned")) == ("er-ddn", "ER + DDN", 1)


def test_a_search_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_search(tmp_path) is None
    write_search(tmp_path, SEARCH)
    assert read_search(tmp_path) == SEARCH
    (tmp_path / "study.json").write_text('{"arms": 1}')
    with pytest.raises(ConfigurationError, match="study.json must be the record of a search by ddn tune"):
        read_search(tmp_path)


def test_slices_show_every_trial_in_its_panel() -> None:
    rates, batches = slice_figure(ARM).axes
    assert (rates.get_xscale(), rates.get_xlabel(), batches.get_xlabel()) == ("log", "lr", "batches")
    offsets = [tuple(point) for drawn in rates.collections for point in drawn.get_offsets().tolist()]
    assert sorted(offsets) == sorted([(0.1, 60.0), (0.2, 70.0), (0.5, 80.0), (1.0, 0.03), (0.2, 70.0)])  # and the best
    assert [label.get_text() for label in rates.get_xticklabels()] == ["0.01", "0.1", "1"]


def test_importance_is_drawn_in_percent() -> None:
    (axes,) = importance_figure(ARM.importance).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([90, 10])


def test_the_page_of_a_search_names_the_protocol_and_trusts_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    write_search(Path.cwd() / "mine", SEARCH)
    assert main(["report", "mine", "-o", "page.html"]) == 0
    assert "1 search in page.html" in capsys.readouterr().out
    page = Path("page.html").read_text()
    assert "Protocol: whole sequence; peeks: all." in page
    assert page.count("<img ") == 2
    assert "the figures could not be drawn" not in page
    assert "ddn tune &lt;x&gt;" in page
    assert "<b>" not in page
    assert "70.00" in page


def test_a_wide_figure_of_a_search_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddn_lightning.report.page.WIDE", 0.0)
    assert search_page(SEARCH, "ddn report").count('<figure class="wide">') == 2  # an item of the page's grid
