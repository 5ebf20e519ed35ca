"""Tables of more classes than an axis can name, as tables of tasks."""

from collections.abc import Mapping

import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ddn_lightning.report.figures.accuracy import MOST_NUMBERS
from ddn_lightning.report.figures.style import MOST_TICKS, heat_map, in_style, panels, short_names

LONGEST_TITLE = 32


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
