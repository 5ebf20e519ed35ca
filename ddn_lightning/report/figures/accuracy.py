"""Figures of accuracy: over training, task by task, against training time, and by DDN's weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from torch import Tensor

from ddn_lightning.report.figures.style import COLOURS, heat_map, in_style, panels, series, shorten
from ddn_lightning.report.statistic import Estimate
from ddn_lightning.runs.recorded_run import Curve

LEGEND_WIDTH = 1.5  # inches
MOST_MARKERS = 8  # on one line
MOST_NUMBERS = 10  # larger matrices have colours only
PANELS_IN_A_ROW = 5


@dataclass(frozen=True)
class Cost:
    """Training time and average accuracy in percent of a run; runs of one group share colour and marker."""

    seconds: float
    accuracy: float
    group: str


def task_accuracy_figure(curves: Mapping[str, Sequence[Curve]]) -> Figure:
    """Accuracy of each task over training (Fig. 6 of the DDN paper).

    A single run has one panel with a line per task; several runs have a panel per task with a line per run.

    Args:
        curves: One curve per task, for each run by name.
    """
    with in_style():
        if len(curves) == 1:
            return _tasks_of_one_run(next(iter(curves.values())))
        num_tasks = max(len(tasks) for tasks in curves.values())
        columns = min(num_tasks, PANELS_IN_A_ROW)
        rows = -(-num_tasks // columns)
        legend_rows = -(-len(curves) // 3)
        size = (2.5, 2.6 + 0.3 * legend_rows / rows)
        figure, axes = panels(rows, columns, size=size, margins=(0.7, 0.65, 0.1, 0.4), sharex=True, sharey=True)
        for task, panel in enumerate(axes):
            panel.set_visible(task < num_tasks)
            panel.set_title(f"task {task + 1}")
            for index, (name, tasks) in enumerate(curves.items()):
                if task < len(tasks):
                    _draw(panel, tasks[task], index, shorten(name))
            panel.set(ylim=(-3, 103), xlabel="tasks learned" if task >= num_tasks - columns else "")
            panel.tick_params(labelbottom=True)
            panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        for row in range(rows):
            axes[row * columns].set_ylabel("accuracy (%)")
        lift = 0.3 * legend_rows / figure.get_figheight()
        figure.subplots_adjust(top=figure.subplotpars.top - lift)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=min(3, len(curves)))
        return figure


def _tasks_of_one_run(tasks: Sequence[Curve]) -> Figure:
    figure, (axes,) = panels(size=(6.4, 3.6), margins=(0.8, 0.7, 0.2 + LEGEND_WIDTH, 0.2))
    for index, curve in enumerate(tasks):
        _draw(axes, curve, index, f"task {index + 1}")
    axes.set(xlabel="tasks learned", ylabel="accuracy (%)", ylim=(-3, 103))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), ncols=1 + len(tasks) // 11)
    return figure


def _draw(axes: Axes, curve: Curve, index: int, label: str) -> None:
    every = -(-len(curve.values) // MOST_MARKERS) or 1
    axes.plot(list(curve.tasks_learned), list(curve.values), label=label, markevery=every, **series(index))


def accuracy_matrix_figure(matrix: Tensor) -> Figure:
    """Accuracy on each task (columns) after each task (rows), in percent.

    Args:
        matrix: The accuracy matrix (tasks, tasks), ``nan`` where not measured.
    """
    values = matrix.double().numpy()
    tasks = len(values)
    texts = [["" if value != value else f"{value:.0f}" for value in row] for row in values]
    with in_style():
        figure, (axes,) = panels(size=(5.2, 4.4), margins=(0.8, 0.7, 0.9, 0.2))
        names = [str(task + 1) for task in range(tasks)]
        heat_map(figure, axes, values, Normalize(0, 100), names, texts if tasks <= MOST_NUMBERS else None)
        axes.set(xlabel="accuracy (%) on task", ylabel="after learning task")
    return figure


def cost_figure(costs: Mapping[str, Cost]) -> Figure:
    """Average accuracy against training time, one point per run.

    Args:
        costs: Cost of each run by name.
    """
    groups: dict[str, list[Cost]] = {}
    for cost in costs.values():
        groups.setdefault(cost.group, []).append(cost)
    rows = -(-len(groups) // 2)
    with in_style():
        figure, (axes,) = panels(size=(6.4, 3.6 + 0.3 * rows), margins=(0.8, 0.7, 0.3, 0.2 + 0.3 * rows))
        for index, (group, members) in enumerate(groups.items()):
            style = {key: value for key, value in series(index).items() if key != "linestyle"}
            axes.scatter([c.seconds for c in members], [c.accuracy for c in members], 70, label=shorten(group), **style)
        seconds = [cost.seconds for cost in costs.values()]
        if min(seconds) > 0 and max(seconds) > 10 * min(seconds):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")  # matplotlib's default needs math text, which is off
            axes.xaxis.set_minor_formatter("")
        axes.set(xlabel="training time (s)", ylabel="ACC (%)")
        figure.legend(loc="upper center", ncols=2)
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
