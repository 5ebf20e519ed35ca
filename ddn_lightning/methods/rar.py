"""Repeated Augmented Rehearsal: several strongly augmented steps per incoming batch."""

from typing import Any

from ddn_lightning.data.rand_augment import RandAugment
from ddn_lightning.distill.learner import Facts
from ddn_lightning.methods.er import ER


class RAR(ER):
    """RAR (Zhang et al., NeurIPS 2022, https://arxiv.org/abs/2209.13917).

    Adds to Experience Replay that each incoming batch is trained on ``replay_steps`` times, each time with a new draw
    from memory, and that RandAugment changes both: the steps against underfitting the stream, the augmentation against
    overfitting the memory. Needs neither task boundaries nor additional storage. The paper's adaptive number of steps
    is left out. Readings: predictions are the network's, where the published ones are by the nearest class mean of the
    memory; both batches are forwarded apart, where theirs are one; and RandAugment comes before crop and flip, where
    theirs replaces them.

    Args:
        replay_steps: Steps per incoming batch. Published: 10.
        rand_augment: The augmentation; by default a single operation of magnitude 14, as published, on torchvision's
            scale. On that of the authors' code 14 hardly changes colours, leaves a single bit of each in a
            posterisation and shifts an image of 32 pixels out of sight; their list also has an inversion and a cut-out.
            To train without any, take :class:`ER` with ``replay_steps``.
        **kwargs: Arguments of :class:`ER`.
    """

    facts = Facts(
        key="rar",
        title="RAR",
        reference="[Zhang et al. 2022](https://arxiv.org/abs/2209.13917)",
        cost="9 more steps, and RandAugment",
    )

    def __init__(
        self, *args: Any, replay_steps: int = 10, rand_augment: RandAugment | None = None, **kwargs: Any
    ) -> None:
        augmentation = RandAugment(operations=1, magnitude=14) if rand_augment is None else rand_augment
        super().__init__(*args, replay_steps=replay_steps, rand_augment=augmentation, **kwargs)
