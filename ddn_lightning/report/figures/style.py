"""The style of all figures: colours for colour-blind readers, and text that is legible at half size."""

import io
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from ddn_lightning.runs.files import atomic_write, write_text

INK = "#1b1b1b"  # text and axes; on a page, replaced by the text colour of the page
GRID = "#9a9a9a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f")  # of Okabe and Ito, visible on white and black
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":")
COLOUR_MAP = "cividis"
MOST_TICKS = 20
LARGE_TICKS = 12  # more labels on an axis are smaller
MOST_TASKS = 20  # lines or panels, one of each task
LONGEST_NAME = 48
LETTER_SIZE = 12  # points
LEGEND_LINE = 0.3  # inches
LEGEND_GAP = 0.85  # inches: the line, and the spaces, of each entry of a legend
RESOLUTION = 110  # dots per inch: a figure of 7 inches is 770 wide
SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 12,
    "font.size": LETTER_SIZE,
    "grid.alpha": 0.4,
    "grid.color": GRID,
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
    "svg.hashsalt": "ddn",  # reproducible files
    "text.color": INK,
    "text.parse_math": False,  # the name of a run may contain $
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def in_style() -> Iterator[None]:
    """Draw in the style of this package without changing the user's settings."""
    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names in other scripts
        yield


def panels(
    rows: int = 1,
    columns: int = 1,
    size: tuple[float, float] = (6.4, 3.6),
    margins: tuple[float, float, float, float] = (0.8, 0.7, 0.2, 0.45),
    edge: float = 0.0,
    **kwargs: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure with equal panels, laid out by hand because matplotlib's layout engines double the time.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        size: Width and height of one panel with its margins, in inches.
        margins: Space to the left, below, to the right and above each panel, in inches.
        edge: Further space at the left edge of the figure, for an axis that all panels of a row share.
        **kwargs: Arguments of ``Figure.subplots``.
    """
    width = columns * size[0] + edge
    figure = Figure(figsize=(width, rows * size[1]))
    axes = figure.subplots(rows, columns, squeeze=False, **kwargs)
    left, below, right, above = margins
    inner_width, inner_height = size[0] - left - right, size[1] - below - above
    figure.subplots_adjust(
        left=(edge + left) / width,
        right=1 - right / width,
        bottom=below / (rows * size[1]),
        top=1 - above / (rows * size[1]),
        wspace=(left + right) / inner_width,
        hspace=(below + above) / inner_height,
    )
    return figure, list(axes.flat)


def legend_shape(names: Sequence[str], width: float) -> tuple[int, int]:
    """Columns and rows of a legend that fits into a width in inches.

    >>> legend_shape(["ER, seed 0", "ER, seed 1", "ER + DDN, seed 0"], width=6.4)
    (2, 2)
    """
    widest = max(map(text_width, names), default=0.0)
    rows = -(-len(names) // max(1, int(width / (widest + LEGEND_GAP))))
    return -(-len(names) // max(1, rows)), rows  # equally long columns


def text_width(text: str) -> float:
    """Width of a text in inches."""
    points, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=LETTER_SIZE), ismath=False)
    return float(points) / 72


def shown_tasks(number: int) -> range:
    """The tasks that a figure with something for each of them shows, counted from 0.

    >>> list(shown_tasks(3)), list(shown_tasks(50))[:3]
    ([0, 1, 2], [0, 3, 6])
    """
    return range(0, number, max(1, -(-number // MOST_TASKS)))


def tasks_left_out(number: int) -> str:
    """The end of a title whose figure does not show all tasks.

    >>> tasks_left_out(50), tasks_left_out(10)
    (', 17 of 50 tasks', '')
    """
    shown = len(shown_tasks(number))
    return f", {shown} of {number} tasks" if shown < number else ""


def series(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of the n-th line.

    >>> series(0)
    {'color': '#0072b2', 'marker': 'o', 'linestyle': '-'}
    """
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def series_by_group(groups: Sequence[int]) -> list[dict[str, Any]]:
    """Style of each of several lines: those of one group share colour and marker, and differ in their dashes.

    >>> [style["linestyle"] for style in series_by_group([0, 0, 1])]
    ['-', '--', '-']
    """
    if len(set(groups)) == 1:
        return [series(index) for index in range(len(groups))]
    before = [groups[:index].count(group) for index, group in enumerate(groups)]
    return [{**series(g), "linestyle": DASHES[n % len(DASHES)]} for g, n in zip(groups, before, strict=True)]


def short_names(names: Sequence[str], most: int = LONGEST_NAME) -> list[str]:
    """Names of limited length for a legend; those that look the same are numbered.

    >>> short_names(["abcdef", "abcef", "ef"], most=3)
    ['a…f (1)', 'a…f (2)', 'ef']
    """
    short = [shorten(name, most) for name in names]
    counts = Counter(short)
    return [
        f"{name} ({short[: index + 1].count(name)})" if counts[name] > 1 else name for index, name in enumerate(short)
    ]


def shorten(name: str, most: int = LONGEST_NAME) -> str:
    """A name of limited length that matplotlib shows in legends, unlike those that start with ``_``.

    >>> shorten("_mine"), shorten("a" * 30, most=5)
    (' _mine', 'aa…aa')
    """
    name = "".join(letter if letter.isprintable() else "�" for letter in " ".join(name.split()))
    if len(name) > most:
        name = f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"
    return f" {name}" if name.startswith("_") else name


def class_space(names: Sequence[str]) -> float:
    """Inches beside an axis for the names of classes, and for its label."""
    return max(0.8, 0.5 + max(map(text_width, names), default=0.0))


def heat_map(
    figure: Figure,
    axes: Axes,
    values: numpy.ndarray[Any, Any],
    norm: Normalize,
    names: Sequence[str],
    texts: Sequence[Sequence[str]] | None = None,
) -> None:
    """Draw a matrix as colours with a colour bar, and ``texts`` in its cells if given."""
    picture = axes.imshow(values, norm=norm, cmap=COLOUR_MAP)
    axes.grid(False)
    step = -(-len(names) // MOST_TICKS)
    for axis, length in ((axes.xaxis, values.shape[1]), (axes.yaxis, values.shape[0])):
        places = range(0, length, step)
        axis.set_ticks(list(places), [names[place] for place in places])
    if len(names) > LARGE_TICKS:
        axes.tick_params(labelsize=9)
    if any(len(name) > 2 for name in names):
        axes.tick_params(axis="x", labelrotation=45)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
    box = axes.get_position()
    scale = figure.add_axes((box.x1 + 0.1 / figure.get_figwidth(), box.y0, 0.14 / figure.get_figwidth(), box.height))
    figure.colorbar(picture, cax=scale)
    for row, line in enumerate(texts or ()):
        for column, text in enumerate(line):
            is_bright = norm(values[row, column]) > 0.5
            axes.text(column, row, text, ha="center", va="center", color="#000000" if is_bright else "#ffffff")


def as_svg(figure: Figure, transparent: bool = True) -> str:
    """The figure as SVG."""
    text = io.StringIO()
    with in_style():
        figure.savefig(text, format="svg", transparent=transparent, metadata={"Date": None})
    return text.getvalue()


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write ``<name>.png`` and ``<name>.svg``."""
    for ending in (".png", ".svg"):
        save_as(figure, folder / f"{name}{ending}")


def save_as(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its suffix, ``.png`` or ``.svg``."""
    if path.suffix.lower() == ".png":
        with in_style(), atomic_write(path) as partial:
            figure.savefig(partial, format="png", dpi=RESOLUTION, pil_kwargs={"compress_level": 1})
        return
    write_text(path, as_svg(figure, transparent=False))
