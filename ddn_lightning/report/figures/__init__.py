"""Figures: pure functions of what runs have measured, each giving a matplotlib ``Figure``."""

from ddn_lightning.report.figures.accuracy import (
    accuracy_matrix_figure,
    alpha_beta_figure,
    task_accuracy_figure,
)
from ddn_lightning.report.figures.anytime import anytime_figure, anytime_tasks_figure
from ddn_lightning.report.figures.memory import composition_figure, entropy_figure, sample_figure, soft_label_figure
from ddn_lightning.report.figures.pareto import pareto_figure
from ddn_lightning.report.figures.predictions import (
    by_task_figure,
    confusion_figure,
    probability_figure,
    probability_map,
    shares_by_task,
)
from ddn_lightning.report.figures.stream import stream_figure, streams_figure
from ddn_lightning.report.figures.style import save_as

__all__ = [
    "accuracy_matrix_figure",
    "alpha_beta_figure",
    "anytime_figure",
    "anytime_tasks_figure",
    "by_task_figure",
    "composition_figure",
    "confusion_figure",
    "entropy_figure",
    "pareto_figure",
    "probability_figure",
    "probability_map",
    "sample_figure",
    "save_as",
    "shares_by_task",
    "soft_label_figure",
    "stream_figure",
    "streams_figure",
    "task_accuracy_figure",
]
