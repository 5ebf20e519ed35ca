"""Measures of continual evaluation, as pure functions of the accuracies at many moments of training.

``accuracies[n, i]`` is the accuracy on task ``i`` at evaluation ``n``, ``nan`` where it was not measured. ``tasks[n]``
is the task being trained then, or -1 before the first batch. The last evaluation of a task is that at its end. The
measures of :mod:`ddn_lightning.metrics.functional` see task ends only. All are ``nan`` where nothing was measured.
"""

import torch
from torch import Tensor

WINDOW = 10  # evaluations, as in the code of De Lange et al.


def accuracy_curve(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """Mean accuracy over the tasks seen, at each evaluation.

    >>> accuracy_curve(torch.tensor([[90.0, 5.0], [60.0, 80.0]]), torch.tensor([0, 1]))
    tensor([90., 70.])
    """
    return _among(accuracies, _numbers(accuracies) <= tasks[:, None]).nanmean(dim=1)


def forgetting_curve(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """Mean drop of the earlier tasks from their best accuracy so far, at each evaluation.

    >>> forgetting_curve(torch.tensor([[90.0, torch.nan], [60.0, 80.0], [70.0, 85.0]]), torch.tensor([0, 1, 1]))
    tensor([nan, 30., 20.])
    """
    best = accuracies.nan_to_num(nan=-torch.inf).cummax(dim=0).values
    return _among(best - accuracies, _numbers(accuracies) < tasks[:, None]).nanmean(dim=1)


def plasticity_curve(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """Accuracy on the task being trained, at each evaluation.

    >>> plasticity_curve(torch.tensor([[90.0, torch.nan], [60.0, 80.0]]), torch.tensor([0, 1]))
    tensor([90., 80.])
    """
    return _among(accuracies, _numbers(accuracies) == tasks[:, None]).nanmean(dim=1)


def average_accuracy_over_steps(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """AAA over steps: the mean of :func:`accuracy_curve` (Caccia et al. 2022, https://arxiv.org/abs/2203.03798).

    ``average_anytime_accuracy`` is the same mean over task ends only, on all test images.

    >>> average_accuracy_over_steps(torch.tensor([[90.0, torch.nan], [60.0, 80.0]]), torch.tensor([0, 1]))
    tensor(80.)
    """
    return accuracy_curve(accuracies, tasks).nanmean()


def minimum_accuracy(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """min-ACC: mean over the earlier tasks of each one's lowest accuracy since it was learned.

    De Lange et al. 2023, https://arxiv.org/abs/2205.13452, Eq. 3.

    >>> minimum_accuracy(torch.tensor([[90.0, torch.nan], [20.0, 50.0], [60.0, 80.0]]), torch.tensor([0, 1, 1]))
    tensor(20.)
    """
    return _lowest(_among(accuracies, _numbers(accuracies) < tasks[:, None])).nanmean()


def worst_case_accuracy(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """WC-ACC: the last task's final accuracy and :func:`minimum_accuracy`, weighted by their tasks (Eq. 4 there).

    >>> worst_case_accuracy(torch.tensor([[90.0, torch.nan], [20.0, 50.0], [60.0, 80.0]]), torch.tensor([0, 1, 1]))
    tensor(50.)
    """
    last = int(tasks[-1])
    if last < 1:
        return accuracies[-1, max(last, 0)]
    return (accuracies[-1, last] + last * minimum_accuracy(accuracies, tasks)) / (last + 1)


def stability_gaps(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """How far each earlier task (columns) falls in each task (rows): accuracy before it minus the lowest within it.

    The drop is measured from the last evaluation before the switch, also if the accuracy does not recover; it is
    negative for a task that only improves. De Lange et al. describe this gap and give no formula.

    >>> stability_gaps(torch.tensor([[90.0, torch.nan], [20.0, 50.0], [60.0, 80.0]]), torch.tensor([0, 1, 1]))
    tensor([[nan, nan],
            [70., nan]])
    """
    num_tasks = accuracies.shape[1]
    gaps = accuracies.new_full((num_tasks, num_tasks), torch.nan)
    for task in range(1, num_tasks):
        before, within = accuracies[tasks == task - 1], accuracies[tasks == task]
        if len(before) and len(within):
            gaps[task, :task] = (before[-1] - _lowest(within))[:task]
    return gaps


def windowed_forgetting(accuracies: Tensor, window: int = WINDOW) -> Tensor:
    """WF: the largest drop of a task between any two of ``window`` successive evaluations, averaged over tasks.

    De Lange et al. 2023. It is 0 for a task that never falls.

    >>> windowed_forgetting(torch.tensor([[90.0], [70.0], [60.0], [80.0]]), window=2)
    tensor(20.)
    """
    return _largest_rises(-accuracies, window).nanmean()


def windowed_plasticity(accuracies: Tensor, window: int = WINDOW) -> Tensor:
    """WP: as :func:`windowed_forgetting`, the largest rise.

    >>> windowed_plasticity(torch.tensor([[90.0], [70.0], [60.0], [80.0]]), window=2)
    tensor(20.)
    """
    return _largest_rises(accuracies, window).nanmean()


def forward_transfer(accuracies: Tensor, tasks: Tensor) -> Tensor:
    """FWT: accuracy on each task just before it is trained minus that of the untrained network, on average.

    Lopez-Paz and Ranzato, NeurIPS 2017 (GEM). It needs the evaluation before the first batch, and unseen tasks.

    >>> forward_transfer(torch.tensor([[50.0, 50.0], [90.0, 58.0], [60.0, 80.0]]), torch.tensor([-1, 0, 1]))
    tensor(8.)
    """
    untrained = accuracies[tasks == -1]
    ends = [accuracies[tasks == task - 1] for task in range(1, accuracies.shape[1])]
    gains = [
        end[-1, task] - untrained[0, task] for task, end in enumerate(ends, start=1) if len(end) and len(untrained)
    ]
    return torch.stack(gains).nanmean() if gains else accuracies.new_tensor(torch.nan)


def anytime_summary(accuracies: Tensor, tasks: Tensor) -> dict[str, Tensor]:
    """All measures by name."""
    trained = tasks >= 0
    if not trained.any():
        return {}
    during = accuracies[trained], tasks[trained]
    begun = _among(during[0], _numbers(accuracies) <= during[1][:, None])  # a task counts from its first batch on
    gaps = stability_gaps(*during)
    known = gaps[~gaps.isnan()]
    return {
        "average_accuracy_over_steps": average_accuracy_over_steps(*during),
        "minimum_accuracy": minimum_accuracy(*during),
        "worst_case_accuracy": worst_case_accuracy(*during),
        "average_stability_gap": known.mean(),
        "worst_stability_gap": known.amax() if len(known) else known.sum() + torch.nan,
        "windowed_forgetting": windowed_forgetting(begun),
        "windowed_plasticity": windowed_plasticity(begun),
        "forward_transfer": forward_transfer(accuracies, tasks),
    }


def _numbers(accuracies: Tensor) -> Tensor:
    """The number of each column's task."""
    return torch.arange(accuracies.shape[1], device=accuracies.device)


def _among(values: Tensor, chosen: Tensor) -> Tensor:
    return values.masked_fill(~chosen, torch.nan)


def _lowest(values: Tensor) -> Tensor:
    """The minimum of each column without ``nan``; ``nan`` if there is none."""
    lowest = values.nan_to_num(nan=torch.inf).amin(dim=0)
    return lowest.masked_fill(lowest.isinf(), torch.nan)


def _largest_rises(values: Tensor, window: int) -> Tensor:
    """The largest rise of each column within a window, at least 0; ``nan`` if it was not measured."""
    rises = torch.zeros_like(values[0])
    for distance in range(1, min(window, len(values))):
        changes = (values[distance:] - values[:-distance]).nan_to_num(nan=0.0)
        rises = torch.maximum(rises, changes.amax(dim=0))
    return rises.masked_fill(values.isnan().all(dim=0), torch.nan)
