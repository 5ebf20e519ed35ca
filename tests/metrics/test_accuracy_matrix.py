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
