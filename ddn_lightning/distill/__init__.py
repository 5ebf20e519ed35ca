"""Distillers: sources of soft labels for replayed samples."""

from ddn_lightning.distill.bias_adaptor import BiasAdaptor
from ddn_lightning.distill.bilevel_distiller import BilevelDistiller
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.distill.fixed_labels import LabelSmoothing, RandomLabels
from ddn_lightning.distill.hypergradient import FrozenNetwork
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distill.learned_labels import LearnedLabels
from ddn_lightning.distill.star import STAR
from ddn_lightning.distill.term import HardLabelControl, Term

__all__ = [
    "STAR",
    "BiasAdaptor",
    "BilevelDistiller",
    "DataDistillNet",
    "FrozenNetwork",
    "HardLabelControl",
    "LabelDistiller",
    "LabelSmoothing",
    "LearnedLabels",
    "RandomLabels",
    "Term",
]
