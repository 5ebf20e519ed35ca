"""Callbacks that store, measure and save; none of them changes the loss."""

from ddn_lightning.callbacks.continual_evaluation import ContinualEvaluation
from ddn_lightning.callbacks.distill_net_snapshot import DistillNetSnapshot
from ddn_lightning.callbacks.divergence_guard import DivergenceGuard
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.last_checkpoint import LastCheckpoint
from ddn_lightning.callbacks.logged_curves import LoggedCurves
from ddn_lightning.callbacks.observations import Observations
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.replay import Replay
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.callbacks.stop_at_task import StopAtTask
from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.callbacks.task_progress_bar import TaskProgressBar

__all__ = [
    "ContinualEvaluation",
    "DistillNetSnapshot",
    "DivergenceGuard",
    "Forgetting",
    "LastCheckpoint",
    "LoggedCurves",
    "Observations",
    "RandomState",
    "Replay",
    "ReservoirSampling",
    "StopAtTask",
    "TaskCallback",
    "TaskProgressBar",
]
