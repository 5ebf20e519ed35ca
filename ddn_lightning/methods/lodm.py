"""LoDM: rehearse synthetic images of low rank instead of stored ones."""

from typing import Any

from ddn_lightning.distill.learned_labels import LearnedLabels
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.learner import Facts
from ddn_lightning.memory.low_rank_memory import LowRankMemory
from ddn_lightning.methods.er import ER


class LoDM(ER):
    """Low-rank distribution matching (Yang et al., NeurIPS 2023), with Experience Replay around it.

    The memory is a :class:`LowRankMemory`: more images than a reservoir has room for, none of them real. Every incoming
    batch is matched as it comes, so that no data are kept or looked at again, in the online setting too. The published
    use is another one, 20,000 steps on all data of a class and a network trained anew on the memory at each task's end;
    how the DDN paper puts it into ER is not said, and the way and the budget here are our choice.

    Args:
        memory: The memory, whose arguments say how images are learned; a :class:`LowRankMemory` by default.
        **kwargs: Arguments of :class:`ER`. ``buffer_size`` is counted in images' worth of numbers.
    """

    facts = Facts(
        key="lodm",
        title="LoDM",
        reference="[Yang et al. 2023](https://github.com/EnnengYang/An-Efficient-Dataset-Condensation-Plugin)",
        stores="low-rank factors instead of images, and their momentum",
        cost="matching on a random ConvNet, up to 100 times a task",
    )

    memory: LowRankMemory

    def __init__(self, *args: Any, memory: LowRankMemory | None = None, **kwargs: Any) -> None:
        super().__init__(*args, memory=LowRankMemory() if memory is None else memory, **kwargs)
        if isinstance(self.distiller, LearnedLabels):
            raise ConfigurationError("LoDM cannot take LearnedLabels, which has a label for each stored image")

    def setup(self, stage: str) -> None:
        """Refuse a memory that the last task would find too small."""
        super().setup(stage)
        if stage == "fit":
            self.memory.images_per_class(self.sequence.test_set.images.shape, self.num_classes)
