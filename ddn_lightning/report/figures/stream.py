"""Figures of streams: which class comes when, and how many samples of it."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from ddn_lightning.report.figures.style import (
    COLOUR_MAP,
    INK,
    LARGE_TICKS,
    MOST_TICKS,
    class_space,
    in_style,
    panels,
    shorten,
)

TASK_NUMBERS = 12  # below a panel


def stream_figure(
    stream: Tensor, num_tasks: int, composition: Tensor | None = None, class_names: Sequence[str] | None = None
) -> Figure:
    """Samples of each class over time, beside the memory's; classes in the order in which they come.

    Args:
        stream: Training samples by label over time (moments, classes), equally many moments in each task.
        num_tasks: Number of tasks.
        composition: Samples of each class in memory after each task (tasks, classes), negative for tasks that have not
            ended; ``None`` without a memory.
        class_names: Names of the classes; by default their numbers.
    """
    order = _by_time(stream)
    is_named = len(order) <= MOST_TICKS
    names = class_names or [str(label) for label in range(stream.shape[1])]
    shown = [shorten(names[label], 12) for label in order.tolist()]
    with in_style():
        space = class_space(shown if is_named else ())
        figure, axes = panels(1, 1 if composition is None else 2, (4.1 + space, 3.8), (space, 0.7, 0.25, 0.45))
        _draw(axes[0], stream[:, order], num_tasks, "training samples")
        if composition is not None:
            _draw(axes[1], composition[:, order], num_tasks, "samples in memory")
        for panel in axes if is_named else ():
            panel.set_yticks(range(len(order)), shown, fontsize=9 if len(order) > LARGE_TICKS else None)
        axes[0].set_ylabel("class" if is_named else "classes, as they come")
    return figure


def streams_figure(streams: Mapping[str, Tensor], num_tasks: int) -> Figure:
    """Several streams side by side.

    Args:
        streams: Training samples by label over time (moments, classes) of each stream, by title.
        num_tasks: Number of tasks of all.
    """
    with in_style():
        figure, axes = panels(1, len(streams), (3.4, 3.2), (0.5, 0.7, 0.15, 0.4))
        for panel, (title, stream) in zip(axes, streams.items(), strict=True):
            _draw(panel, stream[:, _by_time(stream)], num_tasks, title)
            panel.set_yticks([])
        axes[0].set_ylabel("class")
    return figure


def _by_time(stream: Tensor) -> Tensor:
    """The classes by the moment at which half of their samples have come."""
    done = stream.cumsum(dim=0) * 2 >= stream.sum(dim=0)
    return done.int().argmax(dim=0).argsort(stable=True)


def _draw(axes: Axes, counts: Tensor, num_tasks: int, title: str) -> None:
    """One heat map: classes by time, on a square-root scale that shows small numbers; empty where there are none."""
    values = counts.clamp_min(0).double().T
    shown = values.masked_fill(values == 0, torch.nan).numpy()
    most = max(float(values.max()), 1.0)
    extent = (0.5, num_tasks + 0.5, counts.shape[1] - 0.5, -0.5)
    axes.imshow(
        shown, norm=PowerNorm(0.5, 0, most), cmap=COLOUR_MAP, aspect="auto", interpolation="none", extent=extent
    )
    for task in range(1, num_tasks):
        axes.axvline(task + 0.5, color=INK, linewidth=0.5, alpha=0.4)
    axes.set_title(f"{title} (at most {most:.0f})")
    axes.set_xticks(range(1, num_tasks + 1, -(-num_tasks // TASK_NUMBERS)))
    axes.set_xlabel("task")
    axes.grid(False)
