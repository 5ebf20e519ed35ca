"""Nothing in a figure is cut off or written over something else, whatever the names and numbers are."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from made_up import made_up_run
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import BboxBase

from ddn_lightning.report.figures.accuracy import task_accuracy_figure
from ddn_lightning.report.figures.anytime import Band, anytime_figure, anytime_tasks_figure
from ddn_lightning.report.figures.memory import entropy_figure, sample_figure
from ddn_lightning.report.figures.predictions import probability_figure
from ddn_lightning.report.figures.run_figures import pictures_of
from ddn_lightning.report.figures.stream import stream_figure
from ddn_lightning.report.figures.style import in_style, short_names
from ddn_lightning.runs.recorded_run import Curve, read_run

NAMES = [f"DER++ + DDN, old_memory_weight 0.5, seed {seed}" for seed in range(10)]
CURVE = Curve([1.0, 2.0], [90.0, 60.0])
BAND = Band(torch.tensor([0, 500, 1250]), torch.tensor([50.0, 60.0, 70.0]), None)


def overlaps(boxes: Sequence[BboxBase]) -> int:
    """How many pairs share more than a pixel."""
    return sum(
        min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
        for a, b in combinations(boxes, 2)
    )


def check(figure: Figure) -> None:
    FigureCanvasAgg(figure)
    with in_style():
        figure.draw_without_rendering()
        panels = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]
        legends = [legend.get_window_extent() for legend in figure.legends]
        labels = [_ticks(axis) for axes in figure.axes if axes.axison for axis in (axes.xaxis, axes.yaxis)]
    for box in (*panels, *legends):
        assert box is not None
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
    assert not any(overlaps([legend, panel]) for legend in legends for panel in panels if panel is not None)
    assert not any(overlaps(pair) for ticks in labels for pair in pairwise(ticks))


def _ticks(axis: Axis) -> list[BboxBase]:
    low, high = sorted(axis.get_view_interval())
    shown = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text.get_window_extent() for text in shown if text.get_text() and text.get_rotation() == 0]


@pytest.mark.parametrize("tasks", [1, 5, 50])
def test_lines_of_tasks_and_of_ten_runs_have_whole_legends(tasks: int) -> None:
    check(task_accuracy_figure({"er": [CURVE] * tasks}))
    check(task_accuracy_figure({name: [CURVE] * tasks for name in NAMES}))
    check(anytime_tasks_figure([BAND] * tasks, [500]))


@pytest.mark.parametrize("number", [2, 3, 10])
def test_names_with_options_have_whole_legends(number: int) -> None:
    names = NAMES[:number]
    check(entropy_figure(dict.fromkeys(names, CURVE), num_classes=10))
    check(anytime_figure(dict.fromkeys(names, [BAND] * 3), [500]))
    check(probability_figure(dict.fromkeys(names[:3], torch.eye(number))))


@pytest.mark.parametrize(("classes", "tasks"), [(10, 5), (20, 10), (200, 20)])
def test_the_figures_of_any_number_of_classes_are_whole(classes: int, tasks: int) -> None:
    run = made_up_run(Path("run"), plugin="DataDistillNet", num_classes=classes, num_tasks=tasks)
    pictures = pictures_of(read_run(run))
    assert len(pictures) == 10
    for picture in pictures:
        check(picture.figure)


def test_labels_below_images_do_not_run_into_each_other() -> None:
    names = ["aquarium fish one", "aquarium fish two", "mushroom"]
    images = torch.zeros(12, 3, 32, 32, dtype=torch.uint8)
    figure = sample_figure(images, torch.arange(12) % 3, torch.tensor([[0.5, 0.3, 0.2]] * 12), names)
    FigureCanvasAgg(figure)
    with in_style():
        figure.draw_without_rendering()
    assert overlaps([text.get_window_extent() for text in figure.axes[0].texts]) == 0


def test_a_stream_of_many_classes_names_none_of_them() -> None:
    axes, *_ = stream_figure(torch.ones(4, 30), 2, class_names=[f"class {n}" for n in range(30)]).axes
    assert "class 0" not in [label.get_text() for label in axes.get_yticklabels()]
    assert axes.get_ylabel() == "classes, as they come"


def test_names_that_look_the_same_when_shortened_are_numbered() -> None:
    orders = [f"ER, class_order [{', '.join(['1'] * 30)}, {n}, {', '.join(['1'] * 30)}], seed 0" for n in range(2)]
    assert len(set(short_names(orders))) == 2
