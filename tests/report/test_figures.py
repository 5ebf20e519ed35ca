"""Figures show the given data: axes, labels, values."""

import math
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from ddn_lightning.report.figures.accuracy import (
    accuracy_matrix_figure,
    alpha_beta_figure,
    task_accuracy_figure,
)
from ddn_lightning.report.figures.memory import composition_figure, entropy_figure, sample_figure, soft_label_figure
from ddn_lightning.report.figures.predictions import confusion_figure, probability_figure, probability_map
from ddn_lightning.report.figures.run_figures import pictures_of
from ddn_lightning.report.figures.stream import stream_figure, streams_figure
from ddn_lightning.report.figures.style import COLOURS, as_svg, save, series
from ddn_lightning.report.statistic import Estimate
from ddn_lightning.runs.observed import Observed
from ddn_lightning.runs.recorded_run import Curve, RecordedRun, read_run

NAN = math.nan
TWO_TASKS = [Curve([1.0, 2.0], [90.0, 60.0]), Curve([2.0], [80.0])]


def test_one_run_has_a_line_per_task() -> None:
    (axes,) = task_accuracy_figure({"er": TWO_TASKS}).axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([1.0, 2.0], [90.0, 60.0]),
        ([2.0], [80.0]),
    ]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.texts] == ["task 1", "task 2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tasks learned", "accuracy (%)")


def test_several_runs_have_a_panel_per_task_and_a_line_per_run() -> None:
    figure = task_accuracy_figure({"er": TWO_TASKS, "_ddn": TWO_TASKS[:1]})
    first, second = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["task 1", "task 2"]
    assert [list(line.get_ydata()) for line in first.lines] == [[90.0, 60.0], [90.0, 60.0]]
    assert [list(line.get_ydata()) for line in second.lines] == [[80.0]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["er", " _ddn"]  # matplotlib hides names with _


def test_the_accuracy_matrix_shows_only_measured_numbers() -> None:
    axes, _ = accuracy_matrix_figure(torch.tensor([[90.0, NAN], [60.4, 80.0]])).axes
    assert axes.images[0].get_array().filled(-1).tolist() == [[90.0, -1], [pytest.approx(60.4), 80.0]]
    assert [text.get_text() for text in axes.texts] == ["90", "", "60", "80"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]


def test_confusion_is_normalised_and_side_by_side() -> None:
    counts = torch.tensor([[3, 1], [0, 0]])
    figure = confusion_figure({"er": counts, "ddn": counts.flip(0)}, class_names=["cat", "dog"])
    maps = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in maps] == ["er", "ddn"]
    assert maps[0].images[0].get_array().filled(-1).tolist() == [[0.75, 0.25], [-1, -1]]  # nothing of class 1
    assert [label.get_text() for label in maps[0].get_xticklabels()] == ["cat", "dog"]
    assert (maps[0].get_xlabel(), maps[0].get_ylabel()) == ("predicted class", "true class")


def test_probabilities_have_a_panel_per_true_class_or_a_map() -> None:
    means = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    figure = probability_figure({"er": means, "ddn": means.T})
    first, second = figure.axes
    assert [bar.get_height() for bar in first.containers[0]] == pytest.approx([0.7, 0.3])
    assert [bar.get_height() for bar in second.containers[1]] == pytest.approx([0.3, 0.6])
    assert second.get_title() == "true: 1"
    axes, _ = probability_map({"er": means}).axes
    assert axes.images[0].get_array().tolist() == means.double().tolist()


def test_alpha_and_beta_have_error_bars() -> None:
    point = (Estimate(3, 40.0, 2.0), Estimate(1, 30.0))
    figure = alpha_beta_figure({1.0: point, 0.5: (Estimate(3, 35.0, 1.0), Estimate(3, 33.0, 3.0))}, {0.9: point})
    alpha, beta = figure.axes
    assert (alpha.get_xlabel(), beta.get_xlabel()) == ("\N{GREEK SMALL LETTER ALPHA}", "β")
    line, _, (bars,) = alpha.containers[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.5, 1.0], [35.0, 40.0])
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[34.0, 36.0], [38.0, 42.0]]
    _, _, (bars,) = beta.containers[1]
    assert bars.get_segments()[0][:, 1].tolist() == [30.0, 30.0]  # measured once


def test_the_memory_is_stacked_by_task() -> None:
    composition = torch.tensor([[5, 0, 5, 0], [2, 3, 2, 3], [-1, -1, -1, -1]])
    (axes,) = composition_figure(composition, torch.tensor([[0, 2], [1, 3], [4, 5]])[:2]).axes
    first, second = axes.containers
    assert [(bar.get_y(), bar.get_height()) for bar in first] == [(0, 10), (0, 4)]
    assert [(bar.get_y(), bar.get_height()) for bar in second] == [(10, 0), (4, 6)]
    assert [text.get_text() for text in axes.texts] == ["1", "1", "2"]


def test_a_stream_is_drawn_in_the_order_of_its_classes_beside_the_memory() -> None:
    stream = torch.tensor([[0, 8], [0, 8], [5, 1], [5, 0]])  # two moments in each of two tasks; class 1 comes first
    left, right = stream_figure(stream, 2, torch.tensor([[0, 4], [2, 2]]), ["cat", "dog"]).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["dog", "cat"]
    assert left.images[0].get_array().filled(-1).tolist() == [[8, 8, 1, -1], [-1, -1, 5, 5]]
    assert right.images[0].get_array().filled(-1).tolist() == [[4, 2], [-1, 2]]
    assert left.get_xlim() == (0.5, 2.5)
    assert len(stream_figure(stream, 2).axes) == 1
    both = streams_figure({"one": stream, "two": stream.flip(1)}, 2)
    assert [axes.get_title() for axes in both.axes] == ["one (at most 8)", "two (at most 8)"]


def test_soft_labels_and_their_entropy_are_drawn_as_given() -> None:
    labels = torch.tensor([[0.5, 0.5], [NAN, NAN]])
    axes, _ = soft_label_figure(labels).axes
    assert axes.images[0].get_array().filled(-1).tolist() == [[0.5, 0.5], [-1, -1]]
    (axes,) = entropy_figure({"ddn": Curve([0.5, 1.0], [0.6, 0.4])}, num_classes=4).axes
    assert list(axes.lines[0].get_ydata()) == [0.6, 0.4]
    assert axes.lines[1].get_ydata()[0] == pytest.approx(math.log(4))


def test_samples_show_their_pixels_and_both_labels() -> None:
    images = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8)
    soft = torch.eye(7)[:, :3] * 0.6 + torch.tensor([0.0, 0.1, 0.3])
    (axes,) = sample_figure(images, torch.arange(7) % 3, soft, class_names=["a", "b", "c"]).axes
    sheet = axes.images[0].get_array()
    assert sheet[:8, :8, 0].tolist() == images[0, 0].tolist()
    assert sheet[:8, :8, 3].min() == 255
    texts = [text.get_text() for text in axes.texts]
    assert texts[0] == "a → a: 60 %\nc: 30 %"
    assert len(texts) == 7
    (axes,) = sample_figure(images[:2], torch.tensor([1, 2])).axes
    assert [text.get_text() for text in axes.texts] == ["1", "2"]


def luminance(colour: str) -> float:
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


@pytest.mark.parametrize("colour", COLOURS)
def test_line_colours_contrast_with_white_and_black(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 2.9  # WCAG asks for 3 : 1
    assert (luminance(colour) + 0.05) / (luminance("#14171c") + 0.05) >= 3


def test_fifteen_lines_look_different() -> None:
    assert len({tuple(series(index).items()) for index in range(15)}) == 15


@pytest.mark.parametrize(
    "name", ["$x_1$", "$", "_a", "<script>alert(1)</script>", "名前", "a\nb", "a--b->", "\x07", ""]
)
def test_any_name_can_be_drawn(name: str) -> None:
    svg = as_svg(task_accuracy_figure({name: TWO_TASKS, "other": TWO_TASKS}))
    assert "<script" not in svg
    ElementTree.fromstring(svg)


def test_figure_files_are_reproducible_and_rcparams_unchanged(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    for folder in ("first", "second"):
        save(task_accuracy_figure({"er": TWO_TASKS}), tmp_path / folder, "accuracy")
    assert (tmp_path / "first/accuracy.svg").read_bytes() == (tmp_path / "second/accuracy.svg").read_bytes()
    with Image.open(tmp_path / "first/accuracy.png") as image:
        assert image.size == pytest.approx((682, 440), abs=1)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert dict(matplotlib.rcParams) == before


def test_a_run_has_every_figure_with_a_description(recorded_runs: Path) -> None:
    run = read_run(recorded_runs / "ddn")
    pictures = {picture.name: picture for picture in pictures_of(run)}
    files = {path.name for path in (recorded_runs / "ddn/figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in pictures for kind in ("png", "svg")}
    assert list(pictures) == [
        *("accuracy_matrix", "task_accuracy", "confusion", "probability", "stream", "memory", "samples"),
        *("soft_labels", "label_entropy"),
    ]
    assert run.results is not None
    assert f"task 5 {run.results.matrix[-1, -1]:.1f} %" in pictures["accuracy_matrix"].description
    assert len(pictures_of(read_run(recorded_runs / "er"))) == 7  # no soft labels
    assert "task_accuracy" in {picture.name for picture in pictures_of(read_run(recorded_runs / "stopped"))}


def test_the_memory_of_a_stopped_run_is_described_as_it_was_last() -> None:
    composition = torch.tensor([[3, 2, 0, 0], [-1, -1, -1, -1]])
    observed = Observed(torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).bool(), composition=composition)
    (picture,) = pictures_of(RecordedRun("run", Path("run"), observed=observed))
    assert picture.description == "Samples of each task in memory at the end: task 1 5, task 2 0."
