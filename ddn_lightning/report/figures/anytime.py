"""Figures of continual evaluation: accuracies over steps, with a band over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ddn_lightning.report.figures.accuracy import MOST_MARKERS, task_legend, task_panel
from ddn_lightning.report.figures.style import (
    INK,
    LEGEND_LINE,
    in_style,
    legend_shape,
    panels,
    series,
    short_names,
    shown_tasks,
)

CURVES = ("accuracy of the tasks seen", "forgetting of the earlier tasks", "accuracy of the newest task")
MOST_SWITCHES = 25  # more lines would hide the curves


@dataclass(frozen=True, eq=False)
class Band:
    """A value over steps, its mean and standard deviation over seeds; ``nan`` where not measured."""

    steps: Tensor
    mean: Tensor
    std: Tensor | None  # of several seeds

    @classmethod
    def of(cls, steps: Tensor, values: Tensor) -> "Band":
        """From the values of each seed (seeds, steps)."""
        return cls(steps, values.mean(dim=0), values.std(dim=0) if len(values) > 1 else None)


def anytime_figure(curves: Mapping[str, Sequence[Band]], switches: Sequence[int]) -> Figure:
    """Accuracy, forgetting and plasticity over steps: a panel each, with a line per group of runs.

    Args:
        curves: The three curves of each group, by its name.
        switches: Steps at which a new task begins.
    """
    names = short_names(list(curves))
    with in_style():
        columns, rows = legend_shape(names, 4.1 * len(CURVES))
        above = 0.45 + LEGEND_LINE * rows
        size, margins = (4.1, 2.95 + above), (0.75, 0.7, 0.3, above)
        figure, axes = panels(1, len(CURVES), size, margins, sharex=True)
        for panel, title, number in zip(axes, CURVES, range(len(CURVES)), strict=True):
            for index, (name, bands) in enumerate(zip(names, curves.values(), strict=True)):
                _draw(panel, bands[number], index, name)
            panel.set_title(title)
            _finish(panel, "percent", switches)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper left", ncols=columns)
    return figure


def anytime_tasks_figure(tasks: Sequence[Band], switches: Sequence[int]) -> Figure:
    """Accuracy of each task over steps, with a line per task; of many tasks, of some of them.

    Args:
        tasks: The accuracy of each task.
        switches: Steps at which a new task begins.
    """
    with in_style():
        shown = shown_tasks(len(tasks))
        figure, axes = task_panel(len(shown))
        for index, task in enumerate(shown):
            _draw(axes, tasks[task], index, f"task {task + 1}")
        _finish(axes, "accuracy (%)", switches)
        axes.set_ylim(-3, 103)
        task_legend(axes, len(shown))
    return figure


def _draw(axes: Axes, band: Band, index: int, label: str) -> None:
    style = series(index)
    steps, mean = band.steps.tolist(), band.mean
    every = -(-len(steps) // MOST_MARKERS) or 1
    axes.plot(steps, mean.tolist(), label=label, markevery=every, **style)
    if band.std is not None:
        low, high = ((mean + sign * band.std).tolist() for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _finish(axes: Axes, label: str, switches: Sequence[int]) -> None:
    for step in switches if len(switches) <= MOST_SWITCHES else ():
        axes.axvline(step, color=INK, linewidth=0.8, linestyle=":", alpha=0.6)
    axes.set(xlabel="step", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
