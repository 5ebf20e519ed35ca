import pytest
import torch

from ddn_lightning import AccuracyMatrix
from ddn_lightning.metrics.accuracy_matrix import summary


def test_rows_against_counting_by_hand() -> None:
    """Classes 0 and 3 are the first task, 1 and 2 the second."""
    metric = AccuracyMatrix(torch.tensor([[0, 3], [1, 2]]))
    scores = torch.tensor([[9.0, 0, 0, 1], [0, 9, 0, 1], [0, 0, 0, 9], [9, 1, 0, 0], [0, 1, 2, 3]])
    labels, tasks = torch.tensor([0, 3, 3, 1, 2]), torch.tensor([0, 0, 0, 1, 1])
    # predicted 0, 1, 3, 0, 3; within the task 0, 3, 3, 1, 2
    metric.update(1, scores[:2], labels[:2], tasks[:2])
    metric.update(1, scores[2:], labels[2:], tasks[2:])
    measured = metric.compute()
    assert torch.allclose(measured["class_il"][1], torch.tensor([200 / 3, 0.0]))
    assert torch.allclose(measured["task_il"][1], torch.tensor([100.0, 100.0]))
    assert measured["class_il"][0].isnan().all()


def test_a_summary_before_the_first_evaluation_is_empty() -> None:
    assert summary(torch.full((3, 3), torch.nan)) == {}


@pytest.mark.parametrize("place", [(1, 1), (1, 0), (2, 1)])
def test_an_evaluation_in_part_has_no_summary_instead_of_an_earlier_one(place: tuple[int, int]) -> None:
    matrix = torch.full((3, 3), 50.0).masked_fill(torch.ones(3, 3).triu(1).bool(), torch.nan)
    assert summary(matrix)["average_accuracy"] == 50
    matrix[place] = torch.nan
    assert summary(matrix) == {}


def test_a_summary_of_some_stages_and_of_the_last_alone() -> None:
    matrix = torch.full((3, 3), torch.nan)
    matrix[2] = torch.tensor([40.0, 50.0, 60.0])
    assert summary(matrix) == {"average_accuracy": 50, "average_anytime_accuracy": 50}
    matrix[1, :2] = torch.tensor([70.0, 60.0])
    assert summary(matrix)["forgetting"] == 20


@pytest.mark.parametrize("numbers", [[[0, 1], [0, 1]], [[3, 7], [1, 9]]])
def test_classes_may_come_again_and_have_any_numbers(numbers: list[list[int]]) -> None:
    classes = torch.tensor(numbers)
    metric = AccuracyMatrix(classes)
    scores = torch.eye(1 + int(classes.max()))[classes[1]]
    metric.update(1, scores, classes[1], torch.ones(2, dtype=torch.long))
    assert metric.compute()["class_il"][1, 1] == 100


def test_counts_of_several_devices_add_up() -> None:
    classes = torch.tensor([[0, 1], [2, 3]])
    scores, labels = torch.randn(50, 4), torch.randint(4, (50,))
    whole, *shares = (AccuracyMatrix(classes) for _ in range(3))
    whole.update(1, scores, labels, labels // 2)
    for rank, share in enumerate(shares):
        share.update(1, scores[rank::2], labels[rank::2], labels[rank::2] // 2)
    shares[0].merge_state(shares[1])
    expected, merged = whole.compute(), shares[0].compute()
    assert all(torch.equal(merged[name].nan_to_num(), expected[name].nan_to_num()) for name in ("class_il", "task_il"))
