"""Mnemonics: learn the pixels of the current task's stored images."""

from torch import Tensor

from ddn_lightning.distill.learner import Facts
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.samples import Samples


class Mnemonics(PixelDistillation):
    """Mnemonics (Liu et al., CVPR 2020, https://arxiv.org/abs/2002.10211) as the memory of Experience Replay.

    At a task's end, the stored images of *this* task are learned such that a step on them lowers the loss on the task's
    data (Eq. 3 of the DDN paper); those of earlier tasks do not change. The DDN paper only says that Mnemonics is
    applied to ER. The original takes several virtual steps, on herded exemplars of a network with distillation; this
    one takes a single exact step, and its hyper-parameters are our choice. On Split Digits they change pixels by 12
    grey levels; larger steps change more and forget more. Needs task boundaries, and no further storage.

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
        """The slots of the current task."""
        return self.memory.slots_of([self.task])

    def outer_batch(self, data: Samples, stored: Samples) -> list[Samples]:
        """The task's data."""
        return [self.draw_from(data)]
