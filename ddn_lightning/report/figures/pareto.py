"""Accuracy and forgetting over what they cost, with the Pareto front."""

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.compared import ComparedRow
from ddn_lightning.report.figures.run_figures import Picture
from ddn_lightning.report.figures.style import GRID, INK, in_style, panels, series, shorten
from ddn_lightning.report.statistic import FEWEST_SEEDS, Estimate

LONGEST_GROUP = 44
LEGEND_LINE = 0.3  # inches
MEASURES: tuple[Literal["acc", "fm"], ...] = ("acc", "fm")
RING: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.2}
LABELS = {"acc": "ACC (%), higher is better", "fm": "FM (%), lower is better"}


def pareto_front(points: Sequence[tuple[float, float]], higher_is_better: bool) -> list[int]:
    """Which points no other is better than at the same cost or below, in the order of their cost.

    Args:
        points: Cost and value of each.
        higher_is_better: Whether a higher value is the better one.

    >>> pareto_front([(1.0, 30.0), (2.0, 29.0), (1.5, 35.0), (1.5, 31.0)], higher_is_better=True)
    [0, 2]
    """
    sign = -1.0 if higher_is_better else 1.0
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda one: (points[one][0], sign * points[one][1])):
        if not front or sign * points[index][1] < sign * points[front[-1]][1]:
            front.append(index)
    return front


def pareto_figure(rows: Sequence[ComparedRow]) -> Figure:
    """ACC and FM over cost: a point per row with its 95 % interval, and the front of those with enough seeds.

    Where rows differ in their statistics, calibrated ones are filled and running ones hollow. Each test bed has panels
    of its own.

    Args:
        rows: The rows of a comparison.

    Raises:
        ConfigurationError: If no run tells its processor time.
    """
    rows = [row for row in rows if row.cpu_minutes is not None]
    if not rows:
        raise ConfigurationError("figure must have runs with cpu_minutes in their results.json, but none has them")
    beds = sorted({row.test_bed for row in rows})
    groups = list(dict.fromkeys(row.group for row in rows))
    is_told_apart = len({row.statistics for row in rows}) > 1
    lines = -(-(len(groups) + 1) // 2) + is_told_apart
    with in_style():
        size = (4.6, 3.6 + LEGEND_LINE * lines / len(beds))
        figure, axes = panels(len(beds), len(MEASURES), size=size, margins=(0.8, 0.7, 0.2, 0.2))
        figure.subplots_adjust(top=figure.subplotpars.top - LEGEND_LINE * lines / figure.get_figheight())
        for place, panel in enumerate(axes):
            shown = [row for row in rows if row.test_bed == beds[place // len(MEASURES)]]
            _draw(panel, shown, MEASURES[place % len(MEASURES)], groups, is_told_apart)
        handles = [Line2D([], [], label=shorten(name, LONGEST_GROUP), **_marker(n)) for n, name in enumerate(groups)]
        ring = {**RING, "markersize": 15, "linestyle": ":", "color": GRID}
        handles.append(Line2D([], [], marker="o", label="Pareto front of the means", **ring))
        title = "BatchNorm statistics: running (hollow), calibrated (filled)" if is_told_apart else None
        figure.legend(handles=handles, loc="upper center", ncols=2, title=title, title_fontsize="medium")
    return figure


def pareto_pictures(rows: Sequence[ComparedRow]) -> list[Picture]:
    """The figure with its gist, if processor times are known of at least two groups."""
    known = [row for row in rows if row.cpu_minutes is not None]
    if len({row.group for row in known}) < 2:
        return []
    gist = "; ".join(f"{row.title}: ACC {row.acc.mean:.1f} % in {_minutes(row)} CPU minutes" for row in known)
    return [Picture("pareto", "ACC and FM over cost, with the Pareto front", pareto_figure(known), f"{gist}.")]


def _minutes(row: ComparedRow) -> str:
    return "?" if row.cpu_minutes is None else f"{row.cpu_minutes.mean:.1f}"


def _draw(
    axes: Axes, rows: Sequence[ComparedRow], measure: Literal["acc", "fm"], groups: Sequence[str], is_told_apart: bool
) -> None:
    baselines = {row.baseline for row in rows}
    is_relative = len(baselines) == 1 and all(row.cost is not None for row in rows)
    points = []
    for row in rows:
        value, cost = (row.acc if measure == "acc" else row.fm), (row.cost if is_relative else row.cpu_minutes)
        if value is None or cost is None:
            continue
        style = _marker(groups.index(row.group))
        if is_told_apart and row.statistics == "running":
            style["markerfacecolor"] = "none"
        bars: dict[str, Any] = {"xerr": _reach(cost), "yerr": _reach(value), "capsize": 3, "elinewidth": 1.2}
        axes.errorbar([cost.mean], [value.mean], **bars, **style)
        if value.n >= FEWEST_SEEDS:  # fewer seeds rank nothing
            points.append((cost.mean, value.mean))
    front = [points[index] for index in pareto_front(points, higher_is_better=measure == "acc")]
    if front:
        axes.plot(*zip(*front, strict=True), color=GRID, linestyle=":", zorder=1)
        axes.plot(*zip(*front, strict=True), "o", markersize=15, **RING)
    axes.margins(0.12)
    name = shorten(str(next(iter(baselines)))) if is_relative else ""
    axes.set(xlabel=f"cost in steps of {name}" if is_relative else "CPU minutes", ylabel=LABELS[measure])


def _marker(index: int) -> dict[str, Any]:
    return {**series(index), "linestyle": "none"}


def _reach(value: Estimate) -> float | None:
    """Half of the interval; of two seeds it would hide all others."""
    return None if value.high is None or value.n < FEWEST_SEEDS else value.high - value.mean
