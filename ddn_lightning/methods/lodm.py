"""LoDM: rehearse synthetic images of low rank instead of stored ones."""

from typing import Any

from ddn_lightning.distill.learned_labels import LearnedLabels
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.memory.low_rank_memory import LowRankMemory
from ddn_lightning.methods.er import ER


class LoDM(ER):
    """Low-rank distribution matching (Yang et al., NeurIPS 2023), with Experience Replay around it.

    The memory is a :class:`LowRankMemory`: more images than a reservoir has room for, none of them real. Every incoming
    batch is matched as it comes, so that no data are kept or looked at again, in the online setting too. The published
    use is another one, 20,000 steps on all data of a class and a network trained anew on the memory at each task's end;
    how the DDN paper puts it into ER is not said, and the way and the budget here are our choice.

    Args:
        rank: Rank of each channel of a synthetic image. Published: 2, or 4 for larger memories and images.
        matching_steps: Matching steps per task at most, from its first batch on.
        matching_steps_per_batch: Matching steps on each incoming batch.
        matching_lr: How far a matching step moves the factors, in root mean square; they begin with a deviation of one.
            Published is plain SGD, at 1 for 10 images per class and 1000 for 50: a hundred steps of it either leave
            noise as it was or diverge, depending on the size of the images and of the memory.
        matching_momentum: Momentum of the factors.
        matching_width: Channels of the random networks.
        matching_batch_size: Synthetic images in a matching step at most.
        **kwargs: Arguments of :class:`ER`. ``buffer_size`` is counted in images' worth of numbers.
    """

    memory: LowRankMemory

    def __init__(
        self,
        *args: Any,
        rank: int = 2,
        matching_steps: int = 100,
        matching_steps_per_batch: int = 1,
        matching_lr: float = 0.1,
        matching_momentum: float = 0.5,
        matching_width: int = 128,
        matching_batch_size: int = 256,
        **kwargs: Any,
    ) -> None:
        # before the base, which builds the memory
        self.rank = rank
        self.matching_steps = matching_steps
        self.matching_steps_per_batch = matching_steps_per_batch
        self.matching_lr = matching_lr
        self.matching_momentum = matching_momentum
        self.matching_width = matching_width
        self.matching_batch_size = matching_batch_size
        super().__init__(*args, **kwargs)
        if isinstance(self.distiller, LearnedLabels):
            raise ConfigurationError("LoDM cannot take LearnedLabels, which has a label for each stored image")

    def build_memory(self, seed: int) -> LowRankMemory:
        """An empty memory of low-rank images."""
        return LowRankMemory(
            self.buffer_size,
            seed,
            rank=self.rank,
            matching_steps=self.matching_steps,
            matching_steps_per_batch=self.matching_steps_per_batch,
            matching_lr=self.matching_lr,
            matching_momentum=self.matching_momentum,
            matching_width=self.matching_width,
            matching_batch_size=self.matching_batch_size,
        )

    def setup(self, stage: str) -> None:
        """Refuse a memory that the last task would find too small."""
        super().setup(stage)
        if stage == "fit":
            self.memory.images_per_class(self.sequence.test_set.images.shape, self.num_classes)
