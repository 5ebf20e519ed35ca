import math

import pytest
import torch

from ddn_lightning.metrics.functional import (
    Over,
    Reference,
    average_accuracy,
    average_anytime_accuracy,
    backward_transfer,
    forgetting,
)

NOT_MEASURED = math.nan
ROWS = [[95.0], [60.0, 70.0], [65.0, 80.0, 88.0], [40.0, 45.0, 55.0, 92.0], [30.0, 35.0, 40.0, 50.0, 95.0]]
MATRIX = torch.tensor([row + [NOT_MEASURED] * (5 - len(row)) for row in ROWS])


@pytest.mark.parametrize(
    ("over", "reference", "expected"),
    [
        ("previous", "best", 50.0),  # Mammoth: (65 + 45 + 48 + 42) / 4
        ("previous", "first", 47.5),  # Avalanche: (65 + 35 + 48 + 42) / 4
        ("previous", "best_before_last", 50.0),
        ("tasks", "best", 40.0),  # the paper's printed formula: 200 / 5
        ("tasks", "first", 38.0),
    ],
)
def test_forgetting_by_hand(over: Over, reference: Reference, expected: float) -> None:
    assert forgetting(MATRIX, over, reference).item() == pytest.approx(expected)


def test_a_task_that_is_best_at_the_end_is_not_forgotten() -> None:
    matrix = torch.tensor([[50.0, NOT_MEASURED], [70.0, 80.0]])
    assert forgetting(matrix).item() == 0.0
    assert forgetting(matrix, reference="best_before_last").item() == -20.0
    assert forgetting(matrix, reference="first").item() == -20.0


def test_the_other_summaries_by_hand() -> None:
    assert average_accuracy(MATRIX).item() == pytest.approx(50.0)  # (30 + 35 + 40 + 50 + 95) / 5
    assert backward_transfer(MATRIX).item() == pytest.approx(-47.5)
    stages = [95.0, 65.0, 233 / 3, 58.0, 50.0]
    assert average_anytime_accuracy(MATRIX).item() == pytest.approx(sum(stages) / 5)


def test_one_task_has_nothing_to_forget() -> None:
    matrix = torch.tensor([[90.0]])
    assert [f(matrix).item() for f in (forgetting, backward_transfer, average_accuracy)] == [0.0, 0.0, 90.0]


def test_entries_above_the_diagonal_are_ignored() -> None:
    for function in (average_accuracy, forgetting, backward_transfer, average_anytime_accuracy):
        filled = MATRIX.where(~MATRIX.isnan(), torch.tensor(100.0))
        assert torch.equal(function(filled), function(MATRIX))


@pytest.mark.parametrize(
    ("over", "reference", "expected"),
    [
        ("previous", "best", (65 - 30 + 80 - 35 + 88 - 40) / 3),  # tasks 1 to 3 were measured before the end
        ("previous", "first", (65 - 30 + 80 - 35 + 88 - 40) / 3),
        ("previous", "best_before_last", (65 - 30 + 80 - 35 + 88 - 40) / 3),
        ("tasks", "best", (65 - 30 + 80 - 35 + 88 - 40) / 5),
    ],
)
def test_tasks_after_which_nothing_was_measured_are_left_out(over: Over, reference: Reference, expected: float) -> None:
    matrix = MATRIX.clone()
    matrix[[0, 1, 3]] = NOT_MEASURED
    assert forgetting(matrix, over, reference).item() == pytest.approx(expected)
    assert average_accuracy(matrix).item() == pytest.approx(50)
    assert average_anytime_accuracy(matrix).item() == pytest.approx((233 / 3 + 50) / 2)
