"""Other readings of the paper."""

import pytest
import torch

from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.samples import Samples
from study.other_readings import OwnPrediction, WithinMixture


def test_g_old_takes_part_in_training_only_within_the_mixture() -> None:
    samples, p = Samples(torch.zeros(4, 1), torch.arange(4)), torch.randn(4, 6).softmax(1)
    for reading, is_mixed in ((WithinMixture, True), (DataDistillNet, False)):
        distiller = reading(beta=0.9)
        distiller.build(6, 10)
        distiller.snapshot()
        with torch.no_grad():
            distiller.generator_net[0].weight.mul_(3)
        learned, given = distiller.labels_to_learn(samples, p), distiller.soft_labels(samples, p)
        assert torch.equal(learned, given) == is_mixed


def test_the_prediction_is_restricted_to_old_classes() -> None:
    distiller = OwnPrediction()
    distiller.build(4, 10)
    distiller.begin_task(torch.tensor([True, True, False, False]))
    labels = distiller.soft_labels(Samples(torch.zeros(1, 1), torch.tensor([1])), torch.tensor([[0.3, 0.1, 0.5, 0.1]]))
    assert torch.allclose(labels, torch.tensor([[0.375, 0.625, 0.0, 0.0]]))  # half of 0.75 and 0.25, half of 0 and 1


@pytest.mark.parametrize("is_old", [[False] * 4, [True, False, False, False]])
def test_a_sample_without_a_prediction_among_old_classes_keeps_its_hard_label(is_old: list[bool]) -> None:
    """In the first task there are none, and later their probability may be exactly zero."""
    distiller = OwnPrediction(apply_from_task=1, memory="running")
    distiller.build(4, 10)
    distiller.begin_task(torch.tensor(is_old))
    labels = distiller.soft_labels(Samples(torch.zeros(1, 1), torch.tensor([1])), torch.tensor([[0.0, 0.9, 0.1, 0.0]]))
    assert labels.tolist() == [[0, 1, 0, 0]]
