"""What is kept of the past."""

from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.low_rank_memory import LowRankMemory
from ddn_lightning.memory.memory import Memory
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer

__all__ = [
    "ExemplarSet",
    "LowRankMemory",
    "Memory",
    "ReservoirBuffer",
]
