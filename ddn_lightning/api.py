"""All public names of the package: those of ``ddn_lightning`` itself, in which they are imported when needed."""

from ddn_lightning.callbacks import *  # noqa: F403
from ddn_lightning.core import *  # noqa: F403
from ddn_lightning.data import *  # noqa: F403
from ddn_lightning.deploy import *  # noqa: F403
from ddn_lightning.distill import *  # noqa: F403
from ddn_lightning.distill.learner import Learner as Learner
from ddn_lightning.distill.replay_loss import ReplayLoss as ReplayLoss
from ddn_lightning.distributed import gather_shares as gather_shares
from ddn_lightning.distributed import local_share as local_share
from ddn_lightning.distributed import sum_across_ranks as sum_across_ranks
from ddn_lightning.errors import ClosedTestSetError as ClosedTestSetError
from ddn_lightning.errors import ConfigurationError as ConfigurationError
from ddn_lightning.errors import DivergenceError as DivergenceError
from ddn_lightning.memory import *  # noqa: F403
from ddn_lightning.methods import *  # noqa: F403
from ddn_lightning.metrics import AccuracyMatrix as AccuracyMatrix
from ddn_lightning.networks import Backbone as Backbone
from ddn_lightning.networks import EfficientNetLite0 as EfficientNetLite0
from ddn_lightning.networks import FrozenFeatures as FrozenFeatures
from ddn_lightning.networks import ResNet18 as ResNet18
from ddn_lightning.networks import SmallNet as SmallNet
from ddn_lightning.networks import TimmBackbone as TimmBackbone
from ddn_lightning.networks import TorchvisionBackbone as TorchvisionBackbone
from ddn_lightning.runs import CurveLogger as CurveLogger
from ddn_lightning.samples import Samples as Samples
from ddn_lightning.samples import concatenate as concatenate
from ddn_lightning.samples import cross_entropy as cross_entropy
