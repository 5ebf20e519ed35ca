"""Figures of continual evaluation: accuracies over steps, with a band over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ddn_lightning.report.figures.accuracy import LEGEND_WIDTH, MOST_MARKERS
from ddn_lightning.report.figures.style import INK, in_style, panels, series, shorten

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
    rows = -(-len(curves) // 2)
    with in_style():
        size, margins = (4.1, 3.4 + 0.3 * rows), (0.75, 0.7, 0.15, 0.45 + 0.3 * rows)
        figure, axes = panels(1, len(CURVES), size, margins, sharex=True)
        for panel, title, number in zip(axes, CURVES, range(len(CURVES)), strict=True):
            for index, (name, bands) in enumerate(curves.items()):
                _draw(panel, bands[number], index, shorten(name, 40))
            panel.set_title(title)
            _finish(panel, "percent", switches)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=min(2, len(curves)))
    return figure


def anytime_tasks_figure(tasks: Sequence[Band], switches: Sequence[int]) -> Figure:
    """Accuracy of each task over steps, with a line per task.

    Args:
        tasks: The accuracy of each task.
        switches: Steps at which a new task begins.
    """
    with in_style():
        figure, (axes,) = panels(size=(7.4, 3.6), margins=(0.8, 0.7, 0.2 + LEGEND_WIDTH, 0.2))
        for index, band in enumerate(tasks):
            _draw(axes, band, index, f"task {index + 1}")
        _finish(axes, "accuracy (%)", switches)
        axes.set_ylim(-3, 103)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), ncols=1 + len(tasks) // 11)
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
