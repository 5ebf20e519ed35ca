"""Replay-based continual learning on PyTorch Lightning."""

from importlib.metadata import version

from ddn_lightning.callbacks.distill_net_snapshot import DistillNetSnapshot
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.last_checkpoint import SaveProgress
from ddn_lightning.callbacks.logged_curves import LoggedCurves
from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.callbacks.task_progress_bar import TaskProgressBar
from ddn_lightning.data.image_transform import ImageTransform
from ddn_lightning.data.split_cifar import SplitCIFAR10, SplitCIFAR100
from ddn_lightning.data.split_digits import SplitDigits
from ddn_lightning.data.split_image_folder import SplitImageFolder
from ddn_lightning.data.split_tiny_imagenet import SplitTinyImageNet
from ddn_lightning.data.task_loader import TaskLoader
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.bilevel_distiller import BilevelDistiller
from ddn_lightning.distill.data_distill_net import DataDistillNet
from ddn_lightning.distill.fixed_labels import LabelSmoothing, RandomLabels
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distill.learned_labels import LearnedLabels
from ddn_lightning.errors import ConfigurationError, DivergenceError
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.low_rank_memory import LowRankMemory
from ddn_lightning.memory.memory import Memory
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.methods.bic import BiC
from ddn_lightning.methods.cls_er import CLSER
from ddn_lightning.methods.derpp import DERPlusPlus
from ddn_lightning.methods.er import ER
from ddn_lightning.methods.er_ace import ERACE
from ddn_lightning.methods.exemplar_method import ExemplarMethod
from ddn_lightning.methods.finetune import Finetune
from ddn_lightning.methods.icarl import ICaRL
from ddn_lightning.methods.joint import Joint
from ddn_lightning.methods.lodm import LoDM
from ddn_lightning.methods.lucir import LUCIR
from ddn_lightning.methods.mnemonics import Mnemonics
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.methods.replay_method import ReplayLoss, ReplayMethod
from ddn_lightning.methods.whole_buffer_distillation import WholeBufferDistillation
from ddn_lightning.metrics.accuracy_matrix import AccuracyMatrix
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.resnet18 import ResNet18
from ddn_lightning.networks.small_net import SmallNet
from ddn_lightning.runs.curve_logger import CurveLogger
from ddn_lightning.samples import Samples, concatenate, cross_entropy

__version__ = version("ddn-lightning")

__all__ = [
    "CLSER",
    "ER",
    "ERACE",
    "LUCIR",
    "AccuracyMatrix",
    "Backbone",
    "BiC",
    "BilevelDistiller",
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
    "ICaRL",
    "ImageTransform",
    "Joint",
    "LabelDistiller",
    "LabelSmoothing",
    "LearnedLabels",
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
    "Samples",
    "SaveProgress",
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
]
