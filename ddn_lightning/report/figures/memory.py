"""Figures of the memory: composition, samples and soft labels."""

from collections.abc import Mapping, Sequence

import numpy
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ddn_lightning.report.figures.style import (
    COLOURS,
    LEGEND_LINE,
    MOST_TICKS,
    class_space,
    heat_map,
    in_style,
    legend_shape,
    panels,
    series_by_group,
    short_names,
    shorten,
)
from ddn_lightning.runs.recorded_run import Curve

SAMPLES_IN_A_ROW = 4
LEAST_SHARE = 0.05  # classes with a smaller share of a soft label are not listed below the image
LONGEST_CLASS = 9  # letters of a name below an image
LETTERS_BELOW_AN_IMAGE = 15
UNIFORM = "uniform labels"


def composition_figure(composition: Tensor, is_class_of_task: Tensor) -> Figure:
    """How many samples of each task the memory holds after each task.

    Args:
        composition: Samples of each class after each task (tasks, classes); negative for tasks that have not ended.
        is_class_of_task: Whether each class is one of each task's (tasks, classes).
    """
    ended = [task for task in range(len(composition)) if int(composition[task].min()) >= 0]
    with in_style():
        figure, (axes,) = panels(size=(6.4, 3.6), margins=(0.8, 0.7, 0.2, 0.2))
        base = [0] * len(ended)
        for task, classes in enumerate(is_class_of_task):
            heights = [int(composition[stage, classes].sum()) for stage in ended]
            colour = COLOURS[task % len(COLOURS)]
            stages = [stage + 1 for stage in ended]
            axes.bar(stages, heights, 0.85, base, color=colour, label=f"task {task + 1}", edgecolor="white")
            largest = max((b + h for b, h in zip(base, heights, strict=True)), default=1)
            for stage, bottom, height in zip(stages, base, heights, strict=True):
                if height > 0.07 * largest:
                    axes.text(stage, bottom + height / 2, str(task + 1), ha="center", va="center", color="#ffffff")
            base = [bottom + height for bottom, height in zip(base, heights, strict=True)]
        axes.set(xlabel="after learning task", ylabel="samples of task (number in bar)")
        axes.set_xticks(range(1, len(composition) + 1, -(-len(composition) // MOST_TICKS)))
        axes.grid(axis="x", visible=False)
    return figure


def soft_label_figure(soft_labels: Tensor, class_names: Sequence[str] | None = None) -> Figure:
    """Mean soft label of each true class, on a square-root scale that shows small shares.

    Args:
        soft_labels: Mean distribution over the classes for each true class (rows), ``nan`` for classes
            that are not in memory.
        class_names: Names of the classes; by default their numbers.
    """
    names = [shorten(name, 10) for name in class_names or map(str, range(len(soft_labels)))]
    with in_style():
        space = class_space(names)
        figure, (axes,) = panels(size=(4.4 + space, 3.7 + space), margins=(space, space, 0.95, 0.2))
        heat_map(figure, axes, soft_labels.double().numpy(), PowerNorm(0.5, 0, 1), names)
        axes.set(xlabel="part of class in the soft label", ylabel="true class")
    return figure


def entropy_figure(curves: Mapping[str, Curve], num_classes: int, groups: Sequence[int] | None = None) -> Figure:
    """Entropy of the soft labels over training, and that of uniform labels.

    Args:
        curves: Mean entropy in nats, for each run by name.
        num_classes: Number of classes.
        groups: Number of the group of each run: those of one group share a colour. By default each is a group.
    """
    names = short_names(list(curves))
    styles = series_by_group(range(len(curves)) if groups is None else groups)
    with in_style():
        columns, rows = legend_shape([*names, UNIFORM], 6.4)
        above = 0.2 + LEGEND_LINE * rows
        figure, (axes,) = panels(size=(6.4, 3.4 + above), margins=(0.8, 0.7, 0.2, above))
        for name, curve, style in zip(names, curves.values(), styles, strict=True):
            shown = {**style, **({"marker": "none"} if len(curve.values) > 30 else {})}
            axes.plot(list(curve.tasks_learned), list(curve.values), label=name, **shown)
        axes.axhline(float(numpy.log(num_classes)), color="#9a9a9a", linestyle="-.", label=UNIFORM)
        axes.set(xlabel="tasks learned", ylabel="label entropy (nats)")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="upper center", ncols=columns)
    return figure


def sample_figure(
    images: Tensor, labels: Tensor, soft_labels: Tensor | None = None, class_names: Sequence[str] | None = None
) -> Figure:
    """Images of the memory, each with its hard label and the largest shares of its soft label.

    Args:
        images: Raw images (samples, channels, height, width).
        labels: Their classes.
        soft_labels: Their soft labels (samples, classes), if any.
        class_names: Names of the classes; by default their numbers.
    """
    columns = min(len(images), SAMPLES_IN_A_ROW)
    rows = -(-len(images) // columns)
    height, width = images.shape[-2:]
    # one image of all samples: a panel for each takes ten times as long
    space = (1.35 if soft_labels is not None else 0.75) * width * 0.5
    step = height + space
    sheet = numpy.full((round(rows * step), columns * round(width * 1.15), 4), 0, dtype=numpy.uint8)
    texts: list[tuple[float, float, str]] = []
    for index, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        top, left = round(index // columns * step), index % columns * round(width * 1.15)
        pixels = image.permute(1, 2, 0).numpy()  # (height, width, channels)
        sheet[top : top + height, left : left + width, :3] = pixels
        sheet[top : top + height, left : left + width, 3] = 255
        soft = None if soft_labels is None else soft_labels[index]
        texts.append((left, top + height + 0.02 * width, describe_sample(label, soft, class_names)))
    with in_style():
        scale = 1.3 / round(width * 1.15)  # inches per pixel
        size = (sheet.shape[1] * scale + 0.1, sheet.shape[0] * scale + 0.1)
        figure, (axes,) = panels(size=size, margins=(0.05, 0.05, 0.05, 0.05))
        axes.imshow(sheet, interpolation="nearest")
        axes.set_axis_off()
        for x, y, text in texts:
            axes.text(x, y, text, fontsize=10, va="top")
    return figure


def describe_sample(label: int, soft_label: Tensor | None, class_names: Sequence[str] | None = None) -> str:
    r"""The hard label and the largest shares of the soft label.

    >>> import torch
    >>> describe_sample(1, torch.tensor([0.2, 0.75, 0.05]))
    '1 → 1: 75 %\n0: 20 %'
    """

    def name(index: int) -> str:
        return str(index) if class_names is None else shorten(class_names[index], LONGEST_CLASS)

    if soft_label is None:
        return name(label)
    order = soft_label.argsort(descending=True, stable=True)[:2].tolist()
    parts = [f"{name(index)}: {100 * float(soft_label[index]):.0f} %" for index in order]
    listed = [part for part, index in zip(parts, order, strict=True) if float(soft_label[index]) > LEAST_SHARE]
    is_short = not listed or len(f"{name(label)} → {listed[0]}") <= LETTERS_BELOW_AN_IMAGE
    return f"{name(label)} →{' ' if is_short else chr(10)}" + "\n".join(listed)
