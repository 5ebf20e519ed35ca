"""Our ACC and FM over the paper's, a point for each cell that both have."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddn_lightning.report.figures.style import GRID, LEGEND_LINE, in_style, legend_shape, panels, series
from study.beside_paper import CellBeside, agreement, by_images
from study.measured import MEASURES, Measure

SIZE = (6.4, 4.9)  # inches of a panel
MARGIN = 0.08  # of an axis, beyond its outermost values


def beside_paper_figure(cells: Sequence[CellBeside]) -> Figure:
    """A row of panels for each size of the images, with the rank correlation and the mean difference as titles.

    On the diagonal ours is the paper's. Bars are standard deviations over seeds; open points have fewer than three. A
    grey line joins a method with the same method and a plug-in. Other data than the first cell's are named beside a
    point, or the number of samples in another memory.

    Args:
        cells: From :func:`cells_beside_paper`; at least one.
    """
    rows = by_images(cells)
    titles = sorted({cell.title for cell in cells})
    styles = {title: {**series(number), "linestyle": "none"} for number, title in enumerate(titles)}
    columns, lines = legend_shape(titles, SIZE[0] * len(MEASURES))
    with in_style():
        space = lines * LEGEND_LINE + 0.2
        figure, axes = panels(len(rows), len(MEASURES), SIZE, margins=(0.8, 0.7, 0.2, 0.45))
        _make_room(figure, space)
        places = iter(axes)
        for images, members in rows.items():
            for measure in MEASURES:
                _draw(next(places), images, members, measure, styles)
        handles = [axes[0].plot([], [], label=title, **style)[0] for title, style in styles.items()]
        figure.legend(handles=handles, loc="upper center", ncols=columns)
    return figure


def _make_room(figure: Figure, space: float) -> None:
    """Make the figure higher by some inches at its top."""
    height = figure.get_figheight()
    scale = height / (height + space)
    figure.set_figheight(height + space)
    figure.subplots_adjust(top=figure.subplotpars.top * scale, bottom=figure.subplotpars.bottom * scale)


def _draw(
    axes: Axes, images: str, cells: Sequence[CellBeside], measure: Measure, styles: Mapping[str, dict[str, Any]]
) -> None:
    points = {cell: pair for cell in cells if (pair := cell.pair(measure)) is not None}
    values = [value for ours, paper in points.values() for value in (ours.mean, paper)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = MARGIN * (high - low) or 1.0
    ends = low - margin, high + margin
    axes.plot(ends, ends, color=GRID, linewidth=1, linestyle="--")
    for cell, (ours, paper) in points.items():
        fill: dict[str, Any] = {} if cell.has_spread else {"markerfacecolor": "white"}
        alone = next((other for other in points if _is_alone(other, cell)), None)
        if alone is not None:
            start = points[alone]
            axes.plot([start[1], paper], [start[0].mean, ours.mean], color=GRID, linewidth=1, zorder=1)
        axes.errorbar(paper, ours.mean, yerr=ours.std, capsize=3, elinewidth=1, **styles[cell.title], **fill)
        if bed := _other_bed(cell, cells[0]):
            axes.annotate(bed, (paper, ours.mean), xytext=(7, -4), textcoords="offset points", fontsize=9)
    axes.set(xlim=ends, xlabel=f"{measure.upper()} of the paper (%)", ylabel=f"ours (%), {images}")
    axes.set_title(f"{measure.upper()}: {agreement(cells, measure) or 'nothing to compare'}")


def _other_bed(cell: CellBeside, first: CellBeside) -> str:
    """What is named beside a point: other data than the first cell's, or another memory; short, as points are close."""
    own, usual = cell.target.cell, first.target.cell
    if own.data != usual.data:
        return own.data
    return "" if own.buffer_size == usual.buffer_size else f"{own.buffer_size}"


def _is_alone(other: CellBeside, cell: CellBeside) -> bool:
    """Whether a cell is that of the same method without its plug-in."""
    is_same_bed = other.group.test_bed == cell.group.test_bed and other.group.method == cell.group.method
    return is_same_bed and other.group.plugin == "none" != cell.group.plugin
