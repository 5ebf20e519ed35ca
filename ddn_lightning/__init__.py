"""Replay-based continual learning on PyTorch Lightning."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddn_lightning.callbacks import (
    DistillNetSnapshot,
    Forgetting,
    LastCheckpoint,
    LoggedCurves,
    Observations,
    RandomState,
    ReservoirSampling,
    SaveProgress,
    TaskCallback,
    TaskProgressBar,
)
from ddn_lightning.data import (
    ImageTransform,
    SplitCIFAR10,
    SplitCIFAR100,
    SplitDigits,
    SplitImageFolder,
    SplitTinyImageNet,
    TaskLoader,
    TaskSequence,
)
from ddn_lightning.distill import (
    BilevelDistiller,
    DataDistillNet,
    LabelDistiller,
    LabelSmoothing,
    LearnedLabels,
    RandomLabels,
)
from ddn_lightning.distill.hypergradient import FrozenNetwork
from ddn_lightning.distributed import gather_shares, local_share, sum_across_ranks
from ddn_lightning.errors import ConfigurationError, DivergenceError
from ddn_lightning.learner import Learner
from ddn_lightning.memory import (
    ClassBalancedReservoir,
    ExemplarSet,
    LowRankMemory,
    Memory,
    ReservoirBuffer,
    RingBuffer,
    SlotBuffer,
)
from ddn_lightning.methods import (
    CLSER,
    ER,
    ERACE,
    LUCIR,
    BiC,
    DERPlusPlus,
    ExemplarMethod,
    Finetune,
    ICaRL,
    Joint,
    LoDM,
    Mnemonics,
    PixelDistillation,
    ReplayMethod,
    WholeBufferDistillation,
)
from ddn_lightning.metrics import AccuracyMatrix
from ddn_lightning.networks import Backbone, ResNet18, SmallNet
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.runs import CurveLogger
from ddn_lightning.samples import Samples, concatenate, cross_entropy

__version__ = version("ddn-lightning")


def load(path: str | Path, **kwargs: Any) -> ReplayMethod:
    """A trained method, ready to predict, with its backbone, transform and class names.

    Args:
        path: Folder of a run, or a checkpoint. Nothing in it is executed.
        **kwargs: Arguments of the method that override the checkpoint's, such as a ``backbone`` of one's own.

    Example:
        >>> load("runs/mine").predict("photos/").names  # doctest: +SKIP
        ['cat', 'ship']
    """
    return ReplayMethod.load_from_checkpoint(path, **kwargs).eval()


__all__ = [
    "CLSER",
    "ER",
    "ERACE",
    "LUCIR",
    "AccuracyMatrix",
    "Backbone",
    "BiC",
    "BilevelDistiller",
    "ClassBalancedReservoir",
    "ConfigurationError",
    "CurveLogger",
    "DERPlusPlus",
    "DataDistillNet",
    "DistillNetSnapshot",
    "DivergenceError",
    "ExemplarMethod",
    "ExemplarSet",
    "Finetune",
    "Forgetting",
    "FrozenNetwork",
    "ICaRL",
    "ImageTransform",
    "Joint",
    "LabelDistiller",
    "LabelSmoothing",
    "LastCheckpoint",
    "LearnedLabels",
    "Learner",
    "LoDM",
    "LoggedCurves",
    "LowRankMemory",
    "Memory",
    "Mnemonics",
    "Observations",
    "PixelDistillation",
    "RandomLabels",
    "RandomState",
    "ReplayLoss",
    "ReplayMethod",
    "ResNet18",
    "ReservoirBuffer",
    "ReservoirSampling",
    "RingBuffer",
    "Samples",
    "SaveProgress",
    "SlotBuffer",
    "SmallNet",
    "SplitCIFAR10",
    "SplitCIFAR100",
    "SplitDigits",
    "SplitImageFolder",
    "SplitTinyImageNet",
    "TaskCallback",
    "TaskLoader",
    "TaskProgressBar",
    "TaskSequence",
    "WholeBufferDistillation",
    "__version__",
    "concatenate",
    "cross_entropy",
    "gather_shares",
    "load",
    "local_share",
    "sum_across_ranks",
]
