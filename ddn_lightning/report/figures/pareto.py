"""Accuracy and forgetting against cost, with the Pareto front."""

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.figures.run_figures import Picture
from ddn_lightning.report.figures.style import (
    GRID,
    INK,
    LEGEND_LINE,
    in_style,
    legend_shape,
    panels,
    series,
    short_names,
    shorten,
)
from ddn_lightning.report.group_comparison import ComparedRow
from ddn_lightning.report.statistic import FEWEST_SEEDS, Estimate

FRONT = "Pareto front of the means"
MEASURES: tuple[Literal["acc", "fm"], ...] = ("acc", "fm")
RING: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.2}
LABELS = {"acc": "ACC (%), higher is better", "fm": "FM (%), lower is better"}


def pareto_front(points: Sequence[tuple[float, float]], higher_is_better: bool) -> list[int]:
    """Indices of the points that no other dominates, in the order of their cost.

    Args:
        points: Cost and value of each point.
        higher_is_better: Whether to maximise the value.

    >>> pareto_front([(1.0, 30.0), (2.0, 29.0), (1.5, 35.0), (1.5, 31.0)], higher_is_better=True)
    [0, 2]
    """
    sign = -1.0 if higher_is_better else 1.0
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], sign * points[i][1])):
        if not front or sign * points[index][1] < sign * points[front[-1]][1]:
            front.append(index)
    return front


def pareto_figure(rows: Sequence[ComparedRow]) -> Figure:
    """ACC and FM against cost: a point per row with its 95 % interval, and the front of those with enough seeds.

    If both kinds of statistics occur, calibrated ones are filled and running ones hollow. Each test bed has its own
    panels.

    Args:
        rows: The rows of a comparison.

    Raises:
        ConfigurationError: If no run has recorded its processor time.
    """
    rows = [row for row in rows if row.cpu_minutes is not None]
    if not rows:
        raise ConfigurationError("figure must have runs with cpu_minutes in their results.json, but none has them")
    beds = sorted({row.test_bed for row in rows})
    groups = list(dict.fromkeys(row.group for row in rows))
    has_both_statistics = len({row.statistics for row in rows}) > 1
    has_front = any(row.acc.n >= FEWEST_SEEDS for row in rows)
    names = short_names(groups)
    with in_style():
        columns, lines = legend_shape([*names, *([FRONT] if has_front else [])], 4.6 * len(MEASURES))
        lines += has_both_statistics
        size = (4.6, 3.6 + LEGEND_LINE * lines / len(beds))
        figure, axes = panels(len(beds), len(MEASURES), size=size, margins=(0.8, 0.7, 0.2, 0.2))
        figure.subplots_adjust(top=figure.subplotpars.top - LEGEND_LINE * lines / figure.get_figheight())
        for place, panel in enumerate(axes):
            shown = [row for row in rows if row.test_bed == beds[place // len(MEASURES)]]
            _draw(panel, shown, MEASURES[place % len(MEASURES)], groups, has_both_statistics)
        handles = [Line2D([], [], label=name, **_marker(n)) for n, name in enumerate(names)]
        ring = {**RING, "markersize": 15, "linestyle": ":", "color": GRID}
        handles += [Line2D([], [], marker="o", label=FRONT, **ring)] if has_front else []
        title = "BatchNorm statistics: running (hollow), calibrated (filled)" if has_both_statistics else None
        figure.legend(handles=handles, loc="upper left", ncols=columns, title=title, title_fontsize="medium")
    return figure


def pareto_pictures(rows: Sequence[ComparedRow]) -> list[Picture]:
    """The figure with its texts, if at least two groups have recorded processor times."""
    known = [row for row in rows if row.cpu_minutes is not None]
    if len({row.group for row in known}) < 2:
        return []
    minutes = [f"{row.cpu_minutes.mean:.1f}" for row in known if row.cpu_minutes is not None]
    listed = "; ".join(
        f"{row.title}: ACC {row.acc.mean:.1f} % in {cost} CPU minutes" for row, cost in zip(known, minutes, strict=True)
    )
    has_front = any(row.acc.n >= FEWEST_SEEDS for row in known)
    front = f"{'with the' if has_front else 'without a'} Pareto front, which needs {FEWEST_SEEDS} seeds of a group"
    unknown = len(rows) - len(known)
    left_out = f"; {unknown} of {len(rows)} groups have not recorded it" if unknown else ""
    return [Picture("pareto", f"ACC and FM over cost, {front}{left_out}", pareto_figure(known), f"{listed}.")]


def _draw(
    axes: Axes,
    rows: Sequence[ComparedRow],
    measure: Literal["acc", "fm"],
    groups: Sequence[str],
    has_both_statistics: bool,
) -> None:
    baselines = {row.baseline for row in rows}
    is_relative = len(baselines) == 1 and all(row.cost is not None for row in rows)
    points = []
    for row in rows:
        value, cost = (row.acc if measure == "acc" else row.fm), (row.cost if is_relative else row.cpu_minutes)
        if value is None or cost is None:
            continue
        style = _marker(groups.index(row.group))
        if has_both_statistics and row.statistics == "running":
            style["markerfacecolor"] = "none"
        bars: dict[str, Any] = {
            "xerr": _half_interval(cost),
            "yerr": _half_interval(value),
            "capsize": 3,
            "elinewidth": 1.2,
        }
        axes.errorbar([cost.mean], [value.mean], **bars, **style)
        if value.n >= FEWEST_SEEDS:  # fewer seeds rank nothing
            points.append((cost.mean, value.mean))
    front = [points[index] for index in pareto_front(points, higher_is_better=measure == "acc")]
    if front:
        axes.plot(*zip(*front, strict=True), color=GRID, linestyle=":", zorder=1)
        axes.plot(*zip(*front, strict=True), "o", markersize=15, **RING)
    axes.margins(0.12)
    name = shorten(str(next(iter(baselines)))) if is_relative else ""
    axes.set(xlabel=f"processor time / that of {name}" if is_relative else "CPU minutes", ylabel=LABELS[measure])


def _marker(index: int) -> dict[str, Any]:
    return {**series(index), "linestyle": "none"}


def _half_interval(value: Estimate) -> float | None:
    """Half of the interval; none for two seeds, whose interval would dwarf all others."""
    return None if value.high is None or value.n < FEWEST_SEEDS else value.high - value.mean
