"""Memories: samples of earlier tasks for replay."""

from ddn_lightning.memory.class_balanced_reservoir import ClassBalancedReservoir
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.gradient_selection import GradientSelection
from ddn_lightning.memory.loss_aware_reservoir import LossAwareReservoir
from ddn_lightning.memory.low_rank_memory import LowRankMemory
from ddn_lightning.memory.memory import Memory
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.memory.ring_buffer import RingBuffer
from ddn_lightning.memory.slot_buffer import SlotBuffer

__all__ = [
    "ClassBalancedReservoir",
    "ExemplarSet",
    "GradientSelection",
    "LossAwareReservoir",
    "LowRankMemory",
    "Memory",
    "ReservoirBuffer",
    "RingBuffer",
    "SlotBuffer",
]
