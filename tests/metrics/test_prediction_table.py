import pytest
import torch
from sklearn.metrics import confusion_matrix

from ddn_lightning.metrics.prediction_table import PredictionTable


def test_counts_and_means_are_those_of_a_loop_over_samples() -> None:
    scores, labels = torch.randn(50, 4), torch.randint(3, (50,))  # nothing of the last class
    table = PredictionTable(num_classes=4)
    for part in (slice(0, 20), slice(20, 50)):
        table.update(scores[part], labels[part])
    found = table.compute()
    expected = confusion_matrix(labels, scores.argmax(1), labels=range(4))
    assert found["confusion"].tolist() == expected.tolist()
    for label in range(3):
        own = [scores[i].softmax(0) for i in range(50) if labels[i] == label]
        assert torch.allclose(found["probability"][label], torch.stack(own).mean(0), atol=1e-6)
    assert found["probability"][3].isnan().all()


def test_masked_scores_get_no_probability() -> None:
    table = PredictionTable(num_classes=2)
    table.update(torch.tensor([[0.3, torch.finfo(torch.float32).min]]), torch.tensor([0]))
    assert table.compute()["probability"][0].tolist() == pytest.approx([1.0, 0.0])
