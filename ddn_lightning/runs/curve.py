"""A value over training."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A value over training.

    Args:
        tasks_learned: Where it was measured, in tasks.
        values: What was measured.
    """

    tasks_learned: Sequence[float]
    values: Sequence[float]
