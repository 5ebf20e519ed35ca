"""Accuracy and forgetting."""

from ddn_lightning.metrics.accuracy_matrix import AccuracyMatrix
from ddn_lightning.metrics.prediction_table import PredictionTable

__all__ = ["AccuracyMatrix", "PredictionTable"]
