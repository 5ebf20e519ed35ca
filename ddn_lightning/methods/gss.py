"""Gradient-based sample selection: a memory of diverse gradients."""

from typing import Any

from ddn_lightning.distill.learner import Facts
from ddn_lightning.memory.gradient_selection import GradientSelection
from ddn_lightning.memory.memory import Memory
from ddn_lightning.methods.er import ER


class GSS(ER):
    """GSS (Aljundi et al., NeurIPS 2019, https://arxiv.org/abs/1903.08671), greedy.

    Adds to Experience Replay the choice of what to store: :class:`GradientSelection`, a memory that other
    methods can have too. Needs neither task boundaries nor more than a number per stored image.

    Args:
        memory: The memory; by default a :class:`GradientSelection`.
        **kwargs: Arguments of :class:`ER`.
    """

    facts = Facts(
        key="gss",
        title="GSS",
        reference="[Aljundi et al. 2019](https://arxiv.org/abs/1903.08671)",
        stores="a score",
        cost="a forward pass of the incoming batch and of 10 stored samples",
    )

    def __init__(self, *args: Any, memory: Memory | None = None, **kwargs: Any) -> None:
        super().__init__(*args, memory=GradientSelection() if memory is None else memory, **kwargs)
