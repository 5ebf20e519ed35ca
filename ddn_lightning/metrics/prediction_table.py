"""Confusion matrix and mean predicted probabilities, as a torchmetrics metric."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class PredictionTable(Metric):
    """Counts predictions and averages predicted probabilities by true class, over all devices.

    Args:
        num_classes: Number of classes.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> table = PredictionTable(num_classes=2)
        >>> table.update(torch.tensor([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]), torch.tensor([0, 1, 1]))
        >>> table.compute()["confusion"]
        tensor([[1, 0],
                [1, 1]])
    """

    full_state_update = False
    confusion: Tensor
    probability: Tensor

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        shape = (num_classes, num_classes)
        self.add_state("confusion", torch.zeros(shape, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("probability", torch.zeros(shape), dist_reduce_fx="sum")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Count a batch.

        Args:
            scores: Score of every class (batch, num_classes), as logits.
            labels: Class of each sample.
        """
        pairs = self.num_classes * labels + scores.argmax(dim=1)
        # not bincount, which reads the maximum and so synchronises the device
        self.confusion.view(-1).index_add_(0, pairs, torch.ones_like(pairs))
        hard = torch.nn.functional.one_hot(labels, self.num_classes).to(self.probability.dtype)
        # not index_add_, whose order of summation differs between runs on a GPU
        self.probability += hard.T @ scores.to(self.probability.dtype).softmax(dim=1)

    def compute(self) -> dict[str, Tensor]:
        """Counts by true (rows) and predicted class, and mean probabilities, ``nan`` for classes without samples."""
        return {"confusion": self.confusion, "probability": self.probability / self.confusion.sum(dim=1, keepdim=True)}
