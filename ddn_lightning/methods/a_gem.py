"""Averaged Gradient Episodic Memory: never step uphill for memory."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy


class AGEM(ReplayMethod):
    """A-GEM (Chaudhry et al., ICLR 2019, https://arxiv.org/abs/1812.00420).

    Unlike Experience Replay it does not descend on memory: a draw from earlier tasks gives a reference gradient, and
    the step on the incoming batch loses its component against it (:func:`projected`). Needs task boundaries, to tell
    earlier samples from those of the current task, and no further storage. The memory is a reservoir, where the paper
    stores equally many samples of each task. A distiller's term counts to the step, or with ``compose="replace"`` to
    the reference.

    Args:
        **kwargs: Arguments of :class:`ReplayMethod`. ``replay_batch_size`` is the size of the reference. Mammoth's
            is 32 on CIFAR-10 and Tiny-ImageNet.
    """

    facts = Facts(
        key="a_gem",
        title="A-GEM",
        reference="[Chaudhry et al. 2019](https://arxiv.org/abs/1812.00420)",
        cost="the projection of a gradient",
    )

    replay_from_task = 2

    def retrieve(self, current: Samples) -> list[Samples]:
        """A draw from earlier tasks."""
        replayed = self.draw_memory(self.old_tasks)
        return [] if replayed is None else [replayed]

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy on the incoming batch; the rehearsal term only gives the reference gradient."""
        (replayed,) = memory
        logits = self.logits_of(replayed)
        return replace(self.current_loss(current), rehearsal=cross_entropy(logits, replayed), memory_logits=logits)

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient of all terms but the rehearsal, :func:`projected`."""
        step = [lambda: loss.other, *loss.deferred_terms]
        if (rehearsal := loss.rehearsal) is None:
            return self.gradient_of(step, parameters)
        _, reference = self.gradient_of([lambda: rehearsal], parameters, retain_graph=True)  # a distiller may share it
        value, new = self.gradient_of(step, parameters)
        return value, projected(new, reference)


def projected(gradients: Sequence[Tensor | None], references: Sequence[Tensor | None]) -> list[Tensor | None]:
    r"""The gradients g without their component against the references r, as one vector over all parameters.

    .. math:: g - \min\left(0, \frac{g^\top r}{r^\top r}\right) r

    >>> projected([torch.tensor([1.0, -1.0])], [torch.tensor([0.0, 2.0])])
    [tensor([1., 0.])]
    """
    pairs = [(g, r) for g, r in zip(gradients, references, strict=True) if g is not None and r is not None]
    product = torch.stack([(g * r).sum() for g, r in pairs]).sum()
    length = torch.stack([r.square().sum() for _, r in pairs]).sum()
    uphill = (product / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_max(0)
    return [g if g is None or r is None else g - uphill * r for g, r in zip(gradients, references, strict=True)]
