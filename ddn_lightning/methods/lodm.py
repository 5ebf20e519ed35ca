"""LoDM: replay low-rank synthetic images instead of stored ones."""

from typing import Any

from ddn_lightning.distill.learner import Facts
from ddn_lightning.memory.low_rank_memory import LowRankMemory
from ddn_lightning.methods.er import ER


class LoDM(ER):
    """Low-rank distribution matching (Yang et al., NeurIPS 2023) as the memory of Experience Replay.

    The memory is a :class:`LowRankMemory`: more images than a reservoir of the same size, each of low rank. They begin
    as incoming images of that rank and match each incoming batch once, so that no data are revisited, also in the
    online setting. The original begins with noise, takes 20,000 steps on all data of a class and retrains the network
    on the memory at each task's end. The DDN paper does not say how it combines LoDM with ER; the combination, the
    beginning and the budget here are our choice. From noise the budget is too small, and old tasks are lost; from real
    images, matching has not reliably added to what they give without it (``matching_steps=0``). Needs tasks
    without common classes, and no further storage.

    Args:
        memory: The memory, with the arguments of distribution matching; by default a :class:`LowRankMemory`.
        **kwargs: Arguments of :class:`ER`. ``buffer_size`` is the size in full images.
    """

    facts = Facts(
        key="lodm",
        title="LoDM",
        reference="[Yang et al. 2023](https://github.com/EnnengYang/An-Efficient-Dataset-Condensation-Plugin)",
        stores="low-rank factors instead of images, and their momentum",
        cost="matching on a random ConvNet, up to 100 times a task",
    )

    needs_disjoint_classes = "the images of a class belong to the one task in which they are made"
    memory: LowRankMemory
    memory_class = LowRankMemory

    def __init__(self, *args: Any, memory: LowRankMemory | None = None, **kwargs: Any) -> None:
        super().__init__(*args, memory=LowRankMemory() if memory is None else memory, **kwargs)
