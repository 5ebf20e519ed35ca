"""The style of all figures: colours for colour-blind readers, and text that is legible at half size."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ddn_lightning.runs.files import atomic_write, write_text

INK = "#1b1b1b"  # text and axes; on a page, replaced by the text colour of the page
GRID = "#9a9a9a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f")  # of Okabe and Ito, visible on white and black
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":")
COLOUR_MAP = "cividis"
MOST_TICKS = 20
LONGEST_NAME = 24
RESOLUTION = 110  # dots per inch: a figure of 7 inches is 770 wide
SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 12,
    "font.size": 12,
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
    **kwargs: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure with equal panels, laid out by hand because matplotlib's layout engines double the time.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        size: Width and height of one panel with its margins, in inches.
        margins: Space to the left, below, to the right and above each panel, in inches.
        **kwargs: Arguments of ``Figure.subplots``.
    """
    figure = Figure(figsize=(columns * size[0], rows * size[1]))
    axes = figure.subplots(rows, columns, squeeze=False, **kwargs)
    left, below, right, above = margins
    inner_width, inner_height = size[0] - left - right, size[1] - below - above
    figure.subplots_adjust(
        left=left / (columns * size[0]),
        right=1 - right / (columns * size[0]),
        bottom=below / (rows * size[1]),
        top=1 - above / (rows * size[1]),
        wspace=(left + right) / inner_width,
        hspace=(below + above) / inner_height,
    )
    return figure, list(axes.flat)


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


def shorten(name: str, most: int = LONGEST_NAME) -> str:
    """A name of limited length that matplotlib shows in legends, unlike those that start with ``_``.

    >>> shorten("_mine"), shorten("a" * 30, most=5)
    (' _mine', 'aa…aa')
    """
    name = "".join(letter if letter.isprintable() else "�" for letter in " ".join(name.split()))
    if len(name) > most:
        name = f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"
    return f" {name}" if name.startswith("_") else name


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
    if any(len(name) > 2 for name in names):
        axes.tick_params(axis="x", labelrotation=45)
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
