"""Mnemonics: exemplars of the current task are learned, pixel by pixel."""

from torch import Tensor

from ddn_lightning.learner import Facts
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.samples import Samples


class Mnemonics(PixelDistillation):
    """Mnemonics (Liu et al., CVPR 2020, https://arxiv.org/abs/2002.10211), with Experience Replay around it.

    At a task's end, what the reservoir holds of *this* task is learned such that a step on it lowers the loss on the
    task's data (Eq. 3 of the DDN paper); what it holds of earlier tasks stays as it is. The DDN paper says no more than
    that it is applied to ER. Its own paper trains for several virtual steps, on herded exemplars of a network with
    distillation; here there is one exact step, and every number is our choice.

    Args:
        **kwargs: Arguments of :class:`PixelDistillation`.
    """

    facts = Facts(
        key="mnemonics",
        title="Mnemonics",
        reference="[Liu et al. 2020](https://arxiv.org/abs/2002.10211)",
        stores="nothing: images are learned",
        cost="none; at a task's end 50 bi-level steps",
    )

    def slots_to_learn(self) -> Tensor:
        """Those of the task that ends."""
        return self.memory.slots_of([self.task])

    def outer_batch(self, data: Samples, held: Samples) -> list[Samples]:
        """The task's data."""
        return [self.draw_from(data)]
