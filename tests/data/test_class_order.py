"""Tasks of any size, in any order of the classes."""

from collections.abc import Callable

import numpy
import pytest
import torch
from every_method import build
from tiny import TinySequence

from ddn_lightning import (
    ER,
    LUCIR,
    BiC,
    ConfigurationError,
    DataDistillNet,
    ICaRL,
    Observations,
    PermutedPixels,
    ReplayMethod,
)
from ddn_lightning.data.class_order import ordered_classes

Fit = Callable[..., ReplayMethod]


def test_tasks_have_the_given_sizes_and_order() -> None:
    sequence = TinySequence(task_sizes=[3, 1, 2], class_order=[5, 1, 0, 4, 2, 3])
    sequence.setup("fit")
    assert [classes.tolist() for classes in sequence.task_classes] == [[5, 1, 0], [4], [2, 3]]
    assert sequence.num_tasks == 3
    for task, classes in enumerate(([0, 1, 5], [4], [2, 3])):
        assert sequence.training_samples(task).labels.unique().tolist() == classes
        assert sequence.is_class_of_task[task].nonzero().flatten().tolist() == classes


def test_the_published_order_is_numpys_and_leaves_its_state_alone() -> None:
    before = numpy.random.get_state()[1].tolist()  # noqa: NPY002
    order = ordered_classes(100, "pycil-1993", None).tolist()
    assert numpy.random.get_state()[1].tolist() == before  # noqa: NPY002
    numpy.random.seed(1993)  # noqa: NPY002
    assert order == numpy.random.permutation(100).tolist()  # noqa: NPY002
    assert TinySequence(class_order="pycil-1993").class_order.sort().values.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task_sizes": [3, 2]}, r"task_sizes must be positive and sum to the 6 classes.*got \[3, 2\] \(sum 5\)"),
        ({"task_sizes": [7, -1]}, "task_sizes must be positive"),
        ({"task_sizes": []}, "task_sizes must be positive"),
        ({"class_order": [0, 1, 2, 3, 4, 4]}, "class_order must have each class from 0 to 5 once, got"),
        ({"class_order": "mine"}, "class_order must be classes or one of pycil-1993, got 'mine'"),
        ({"class_order_seed": 10**20}, "class_order_seed must be from -9223372036854775808 to 1844.*, got 1000"),
        ({"class_order_seed": 1, "stream": PermutedPixels()}, "class_order_seed must be left out where every task has"),
        ({"class_order": "pycil-1993", "class_order_seed": 1}, "class_order_seed must be left out with class_order"),
    ],
)
def test_wrong_sizes_and_orders_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TinySequence(**arguments)


@pytest.mark.parametrize("method", [ER, ICaRL, LUCIR, BiC])
def test_uneven_tasks_are_learned_and_measured_by_their_own_classes(fit: Fit, method: type[ReplayMethod]) -> None:
    observations = Observations()
    distiller = DataDistillNet if method is ER else None
    sequence = TinySequence(task_sizes=[3, 1, 2], class_order=[5, 1, 0, 4, 2, 3], batch_size=6)
    learned = fit(lambda: build(method, distiller), sequence, callbacks=[observations])
    assert learned.is_seen_class.all()
    assert learned.accuracy_matrix.isnan().tolist() == torch.ones(3, 3).triu(1).bool().tolist()
    assert learned.task_il_matrix[1:, 1].tolist() == [100.0, 100.0]  # a task of one class leaves no choice
    assert observations.observed is not None
    assert observations.observed.is_class_of_task.equal(sequence.is_class_of_task)
