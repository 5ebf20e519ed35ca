"""The machine of all methods: what runs in a step, at a task's end, at a start and at a resume."""

from ddn_lightning.core.loading import load
from ddn_lightning.core.replay_method import ReplayMethod

__all__ = ["ReplayMethod", "load"]
