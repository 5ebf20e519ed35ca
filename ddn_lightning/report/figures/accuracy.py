"""Figures of accuracy: over training, task by task, and by DDN's weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ddn_lightning.report.figures.style import (
    COLOURS,
    LEGEND_LINE,
    heat_map,
    in_style,
    legend_shape,
    panels,
    series,
    series_by_group,
    short_names,
    shown_tasks,
)
from ddn_lightning.report.statistic import Estimate
from ddn_lightning.runs.recorded_run import Curve

LEGEND_WIDTH = 1.3  # inches, of a column of tasks
TASKS_IN_A_COLUMN = 10
MOST_MARKERS = 8  # on one line
MOST_NUMBERS = 10  # larger matrices have colours only
PANELS_IN_A_ROW = 5
ROW_WIDTH = 12.0  # inches, of a row of panels
PANEL_HEIGHT = 4.0  # inches, of the matrix and the curves of one run


def task_accuracy_figure(curves: Mapping[str, Sequence[Curve]], groups: Sequence[int] | None = None) -> Figure:
    """Accuracy of each task over training (Fig. 6 of the DDN paper); of many tasks, of some of them.

    A single run has one panel with a line per task; several runs have a panel per task with a line per run.

    Args:
        curves: One curve per task, for each run by name.
        groups: Number of the group of each run: those of one group share a colour. By default each is a group.
    """
    with in_style():
        if len(curves) == 1:
            return _tasks_of_one_run(next(iter(curves.values())))
        names, num_tasks = short_names(list(curves)), max(len(tasks) for tasks in curves.values())
        styles = series_by_group(range(len(curves)) if groups is None else groups)
        shown = shown_tasks(num_tasks)
        columns = min(len(shown), PANELS_IN_A_ROW)
        rows = -(-len(shown) // columns)
        width = max(min(ROW_WIDTH / columns, 4.0), 6.4 / columns)
        legend_columns, legend_rows = legend_shape(names, columns * width)
        size = (width, 2.6 + LEGEND_LINE * legend_rows / rows)
        figure, axes = panels(rows, columns, size=size, margins=(0.2, 0.65, 0.1, 0.4), edge=0.5, sharey=True)
        for panel in axes[len(shown) :]:
            panel.set_visible(False)
        for place, (task, panel) in enumerate(zip(shown, axes, strict=False)):
            found = [(n, tasks[task]) for n, tasks in enumerate(curves.values()) if task < len(tasks)]
            for number, curve in found:
                _draw(panel, curve, styles[number], names[number])
            panel.set(title=f"task {task + 1}", xlabel="tasks learned" if place >= len(shown) - columns else "")
            _begin(panel, [curve for _, curve in found], num_tasks)
        axes[0].set_ylim(*_accuracy_limits(curves.values()))
        for row in range(rows):
            axes[row * columns].set_ylabel("accuracy (%)")
        lift = LEGEND_LINE * legend_rows / figure.get_figheight()
        figure.subplots_adjust(top=figure.subplotpars.top - lift)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper left", ncols=legend_columns)
        return figure


def _begin(panel: Axes, curves: Iterable[Curve], num_tasks: int) -> None:
    """Let the panel of a task begin where the first run has learned it: before, there is nothing to see."""
    first = min((place for curve in curves for place in curve.tasks_learned), default=num_tasks)
    space = 0.06 * (num_tasks - first) or 0.5
    panel.set_xlim(first - space, num_tasks + space)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def scale_bottom(lowest: float) -> float:
    """Where a scale of accuracies begins: at the ten below the lowest, at most at 80.

    >>> scale_bottom(83.3), scale_bottom(97.0), scale_bottom(4.2)
    (80.0, 80.0, 0.0)
    """
    return min(10 * (lowest // 10), 80.0)


def _accuracy_limits(runs: Iterable[Sequence[Curve]]) -> tuple[float, float]:
    """From :func:`scale_bottom` to 100, with a little space."""
    bottom = scale_bottom(min((value for tasks in runs for curve in tasks for value in curve.values), default=0.0))
    space = 0.03 * (100 - bottom)
    return bottom - space, 100 + space


def _tasks_of_one_run(tasks: Sequence[Curve]) -> Figure:
    shown = shown_tasks(len(tasks))
    figure, axes = task_panel(len(shown))
    for index, task in enumerate(shown):
        _draw(axes, tasks[task], series(index), f"task {task + 1}")
    axes.set(xlabel="tasks learned", ylabel="accuracy (%)", ylim=_accuracy_limits([tasks]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    task_legend(axes, len(shown))
    return figure


def task_panel(lines: int) -> tuple[Figure, Axes]:
    """A figure of one panel, with space for the legend of a line per task."""
    legend = LEGEND_WIDTH * -(-lines // TASKS_IN_A_COLUMN)
    figure, (axes,) = panels(size=(4.9 + legend, PANEL_HEIGHT), margins=(0.8, 0.7, 0.2 + legend, 0.2))
    return figure, axes


def task_legend(axes: Axes, lines: int) -> None:
    """The legend of a line per task, to the right."""
    columns = -(-lines // TASKS_IN_A_COLUMN)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), ncols=columns, columnspacing=1.0)


def _draw(axes: Axes, curve: Curve, style: dict[str, Any], label: str) -> None:
    every = -(-len(curve.values) // MOST_MARKERS) or 1
    axes.plot(list(curve.tasks_learned), list(curve.values), label=label, markevery=every, **style)


def accuracy_matrix_figure(matrix: Tensor) -> Figure:
    """Accuracy on each task (columns) after each task (rows), in percent.

    Args:
        matrix: The accuracy matrix (tasks, tasks), ``nan`` where not measured.
    """
    values = matrix.double().numpy()
    tasks = len(values)
    texts = [["" if value != value else f"{value:.0f}" for value in row] for row in values]
    with in_style():
        figure, (axes,) = panels(size=(4.8, PANEL_HEIGHT), margins=(0.8, 0.7, 0.9, 0.2))
        names = [str(task + 1) for task in range(tasks)]
        colours = Normalize(scale_bottom(float(numpy.nan_to_num(values, nan=100.0).min())), 100)
        heat_map(figure, axes, values, colours, names, texts if tasks <= MOST_NUMBERS else None)
        axes.set(xlabel="accuracy (%) on task", ylabel="after learning task")
    return figure


def alpha_beta_figure(
    alphas: Mapping[float, tuple[Estimate, Estimate]], betas: Mapping[float, tuple[Estimate, Estimate]]
) -> Figure:
    """ACC and FM for different weights of DDN's soft labels and of its old hypernetwork (Fig. 4 of the DDN paper).

    Args:
        alphas: ACC and FM by alpha, with beta fixed; without any there is no panel.
        betas: ACC and FM by beta, with alpha fixed; without any there is no panel.
    """
    with in_style():
        shown = [(symbol, points) for symbol, points in zip("αβ", (alphas, betas), strict=True) if points]
        figure, axes = panels(1, len(shown), size=(3.8, 3.6), margins=(0.75, 0.7, 0.15, 0.3))
        for panel, (symbol, points) in zip(axes, shown, strict=True):
            for index, (name, colour) in enumerate(zip(("ACC", "FM"), COLOURS, strict=False)):
                chosen = [points[weight][index] for weight in sorted(points)]
                panel.errorbar(
                    sorted(points),
                    [value.mean for value in chosen],
                    [value.std or 0.0 for value in chosen],
                    label=name,
                    capsize=4,
                    **{**series(index), "color": colour},
                )
            panel.set(xlabel=symbol, ylabel="percent")
            panel.legend(loc="best")
    return figure
