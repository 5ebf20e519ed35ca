"""Replay-based continual learning on PyTorch Lightning.

The public names of all sub-packages, which each list their own in ``__all__``.
"""

from importlib.metadata import version

from ddn_lightning import callbacks, core, data, deploy, distill, memory, methods
from ddn_lightning.callbacks import *  # noqa: F403
from ddn_lightning.core import *  # noqa: F403
from ddn_lightning.data import *  # noqa: F403
from ddn_lightning.deploy import *  # noqa: F403
from ddn_lightning.distill import *  # noqa: F403
from ddn_lightning.distributed import gather_shares, local_share, sum_across_ranks
from ddn_lightning.errors import ClosedTestSetError, ConfigurationError, DivergenceError
from ddn_lightning.learner import Learner
from ddn_lightning.memory import *  # noqa: F403
from ddn_lightning.methods import *  # noqa: F403
from ddn_lightning.metrics import AccuracyMatrix
from ddn_lightning.networks import Backbone, FrozenFeatures, ResNet18, SmallNet, TimmBackbone, TorchvisionBackbone
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.runs import CurveLogger
from ddn_lightning.samples import Samples, concatenate, cross_entropy

__version__ = version("ddn-lightning")

__all__ = [
    "AccuracyMatrix",
    "Backbone",
    "ClosedTestSetError",
    "ConfigurationError",
    "CurveLogger",
    "DivergenceError",
    "FrozenFeatures",
    "Learner",
    "ReplayLoss",
    "ResNet18",
    "Samples",
    "SmallNet",
    "TimmBackbone",
    "TorchvisionBackbone",
    "__version__",
    "concatenate",
    "cross_entropy",
    "gather_shares",
    "local_share",
    "sum_across_ranks",
]
__all__ += callbacks.__all__
__all__ += core.__all__
__all__ += data.__all__
__all__ += deploy.__all__
__all__ += distill.__all__
__all__ += memory.__all__
__all__ += methods.__all__
