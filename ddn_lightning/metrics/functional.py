"""Continual-learning metrics as pure functions of the accuracy matrix.

``R[t, i]`` is the accuracy on task ``i`` after training task ``t``; only ``i <= t`` is read. For an incomplete run pass
the measured part: ``R[:done, :done]``. Rows of ``nan`` are tasks after which nothing was measured, as with
``evaluate_every_n_tasks``; the last row must be measured. ACC does not depend on them. The other measures then compare
the measured rows only, over the tasks that were measured before the end.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ddn_lightning.errors import check_choice

Reference = Literal["best", "first", "best_before_last"]
Over = Literal["previous", "tasks"]


def check_definition(over: str, reference: str) -> None:
    """Raise unless both are valid arguments of :func:`forgetting`."""
    check_choice(get_args(Over), over=over)
    check_choice(get_args(Reference), reference=reference)


def average_accuracy(matrix: Tensor) -> Tensor:
    """ACC: mean accuracy over all tasks at the end.

    >>> average_accuracy(torch.tensor([[90.0, 0.0], [60.0, 80.0]]))
    tensor(70.)
    """
    return matrix[-1].mean()


def forgetting(matrix: Tensor, over: Over = "previous", reference: Reference = "best") -> Tensor:
    """FM: mean drop in accuracy of each task from a reference to the end.

    ============================================  ==========  ==================
    used by                                       over        reference
    ============================================  ==========  ==================
    Mammoth, PyCIL, the DDN paper's *tables*      previous    best
    Avalanche                                     previous    first
    Chaudhry et al., ECCV 2018 (RWalk)            previous    best_before_last
    the DDN paper's *printed formula*             tasks       best
    ============================================  ==========  ==================

    The paper's tables cannot follow its printed formula: four cells would need accuracies above 100 %.

    Args:
        matrix: Accuracy matrix (tasks, tasks).
        over: Average over the ``previous`` tasks, all but the last; or over all ``tasks``, with zero for the last.
        reference: ``best`` is a task's highest accuracy at any stage including the end, so forgetting is never
            negative; ``best_before_last`` excludes the end; ``first`` is the accuracy right after the task, or at
            the first evaluation since.

    >>> forgetting(torch.tensor([[90.0, 0.0], [60.0, 80.0]]))
    tensor(30.)
    """
    check_definition(over, reference)
    tasks = len(matrix)
    if tasks == 1:
        return torch.zeros_like(matrix[0, 0])
    known = _known(matrix)
    first = known.isfinite().int().argmax(dim=0, keepdim=True)
    earlier = known[:-1].amax(dim=0)
    peaks = {"best": known.amax(dim=0), "best_before_last": earlier, "first": known.gather(0, first)[0]}
    drops = (peaks[reference] - matrix[-1])[earlier.isfinite()]
    return drops.sum() / (tasks if over == "tasks" else len(drops))


def backward_transfer(matrix: Tensor) -> Tensor:
    """BWT: mean change of each previous task's accuracy since it was learned (Lopez-Paz and Ranzato, NeurIPS 2017).

    >>> backward_transfer(torch.tensor([[90.0, 0.0], [60.0, 80.0]]))
    tensor(-30.)
    """
    return -forgetting(matrix, reference="first")


def average_anytime_accuracy(matrix: Tensor) -> Tensor:
    """AAA: mean over all stages of the mean accuracy over the tasks seen so far.

    >>> average_anytime_accuracy(torch.tensor([[90.0, 0.0], [60.0, 80.0]]))
    tensor(80.)
    """
    seen = torch.arange(1, len(matrix) + 1, device=matrix.device)
    known = _known(matrix)
    means = known.masked_fill(known.isinf(), 0).sum(dim=1) / seen
    return means[known[:, 0].isfinite()].mean()


def _known(matrix: Tensor) -> Tensor:
    """The accuracies on the tasks learned so far, and minus infinity where nothing was measured."""
    is_read = torch.ones_like(matrix, dtype=torch.bool).tril() & ~matrix.isnan()
    return matrix.masked_fill(~is_read, -torch.inf)
