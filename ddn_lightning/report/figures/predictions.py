"""Figures of predictions: confusion matrices and mean probabilities, by class or, of many classes, by task."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ddn_lightning.report.figures.accuracy import MOST_NUMBERS
from ddn_lightning.report.figures.style import (
    COLOURS,
    LEGEND_LINE,
    MOST_TICKS,
    class_space,
    heat_map,
    in_style,
    legend_shape,
    panels,
    short_names,
    shorten,
)

CLASSES_IN_A_ROW = 5
LONGEST_TITLE = 32


def normalised(confusion: Tensor) -> Tensor:
    """The counts of a confusion matrix as shares of each true class; ``nan`` for a class without samples.

    >>> normalised(torch.tensor([[3, 1], [0, 5]]))
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]])
    """
    return confusion / confusion.sum(dim=1, keepdim=True)


def confusion_figure(confusions: Mapping[str, Tensor], class_names: Sequence[str] | None = None) -> Figure:
    """Normalised confusion matrices side by side (Fig. 5 of the DDN paper).

    Args:
        confusions: Counts by true class (rows) and predicted class, for each run by name.
        class_names: Names of the classes; by default their numbers.
    """
    return _side_by_side(
        {name: normalised(counts) for name, counts in confusions.items()}, class_names, "predicted class"
    )


def probability_map(probabilities: Mapping[str, Tensor], class_names: Sequence[str] | None = None) -> Figure:
    """Mean predicted probabilities of each true class as colours, for any number of classes.

    Args:
        probabilities: Means by true class (rows), for each run by name.
        class_names: Names of the classes; by default their numbers.
    """
    return _side_by_side(probabilities, class_names, "mean probability of class")


def probability_figure(probabilities: Mapping[str, Tensor], class_names: Sequence[str] | None = None) -> Figure:
    """Mean predicted probabilities in a panel per true class (Fig. 3 of the DDN paper), for a few classes.

    Args:
        probabilities: Means by true class (rows), for each run by name.
        class_names: Names of the classes; by default their numbers.
    """
    num_classes = len(next(iter(probabilities.values())))
    names = class_names or [str(label) for label in range(num_classes)]
    columns = min(num_classes, CLASSES_IN_A_ROW)
    rows = -(-num_classes // columns)
    with in_style():
        legend_columns, legend_rows = legend_shape(short_names(list(probabilities)), 2.4 * columns)
        size = (2.4, 2.4 + LEGEND_LINE * legend_rows / rows)
        figure, axes = panels(rows, columns, size=size, margins=(0.2, 0.65, 0.1, 0.4), edge=0.5, sharey=True)
        for label, panel in enumerate(axes):
            panel.set_visible(label < num_classes)
            if label < num_classes:
                shown = zip(short_names(list(probabilities)), probabilities.values(), strict=True)
                _bars(panel, {name: means[label] for name, means in shown})
                panel.axvspan(label - 0.5, label + 0.5, color="#9a9a9a", alpha=0.25, linewidth=0)
                panel.set_title(f"true: {shorten(names[label], 12)}")
            panel.set(ylim=(0, 1.02), xlabel="class" if label >= num_classes - columns else "")
        for row in range(rows):
            axes[row * columns].set_ylabel("probability")
        figure.subplots_adjust(top=figure.subplotpars.top - LEGEND_LINE * legend_rows / figure.get_figheight())
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper left", ncols=legend_columns)
    return figure


def _bars(axes: Axes, means: Mapping[str, Tensor]) -> None:
    width = 0.8 / len(means)
    for index, (name, values) in enumerate(means.items()):
        places = [label - 0.4 + (index + 0.5) * width for label in range(len(values))]
        axes.bar(places, values.tolist(), width, label=name, color=COLOURS[index % len(COLOURS)])


def _side_by_side(tables: Mapping[str, Tensor], class_names: Sequence[str] | None, label: str) -> Figure:
    num_classes = len(next(iter(tables.values())))
    names = [shorten(name, 10) for name in class_names or map(str, range(num_classes))]
    with in_style():
        space = class_space(names)
        size = (3.9 + space, 3.7 + space)
        figure, axes = panels(1, len(tables), size=size, margins=(space, space, 0.75, 0.45))
        for panel, name, table in zip(axes, short_names(list(tables), LONGEST_TITLE), tables.values(), strict=True):
            heat_map(figure, panel, table.double().numpy(), Normalize(0, 1), names)
            panel.set(xlabel=label, title=name)
        axes[0].set_ylabel("true class")
    return figure


def is_shown_by_task(is_class_of_task: Tensor) -> bool:
    """Whether there are more classes than an axis can name, each of one task or, to come, of none.

    Args:
        is_class_of_task: Whether each class is one of each task's (tasks, classes).
    """
    tasks, classes = is_class_of_task.shape
    return classes > MOST_TICKS and tasks > 1 and bool((is_class_of_task.sum(dim=0) <= 1).all())


def shares_by_task(shares: Tensor, is_class_of_task: Tensor) -> Tensor:
    """Shares of each true class (rows), summed over the classes of a task and averaged over its true classes.

    Args:
        shares: By true class (rows) and class; rows of ``nan`` do not count.
        is_class_of_task: Whether each class is one of each task's (tasks, classes).

    >>> shares_by_task(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]]),
    ...                torch.tensor([[True, True, False], [False, False, True]]))
    tensor([[0.6250, 0.3750],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    by_task = shares.double() @ is_class_of_task.double().T  # (classes, tasks)
    return torch.stack([by_task[classes].nanmean(dim=0) for classes in is_class_of_task])


def by_task_figure(shares: Mapping[str, Tensor], label: str) -> Figure:
    """Shares of each true task in percent, side by side.

    Args:
        shares: From :func:`shares_by_task`, for each run by name.
        label: What the columns are.
    """
    with in_style():
        figure, axes = panels(1, len(shares), size=(4.7, 4.5), margins=(0.8, 0.8, 0.75, 0.45))
        for panel, name, table in zip(axes, short_names(list(shares), LONGEST_TITLE), shares.values(), strict=True):
            values = 100 * table.double().numpy()
            texts = [["" if value != value else f"{value:.0f}" for value in row] for row in values]
            tasks = [str(task + 1) for task in range(len(values))]
            heat_map(figure, panel, values, Normalize(0, 100), tasks, texts if len(tasks) <= MOST_NUMBERS else None)
            panel.set(xlabel=label, title=name)
        axes[0].set_ylabel("task of the true class")
    return figure
