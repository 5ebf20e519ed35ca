"""X-DER: DER++ that renews the outputs stored with its memory, and keeps the classes of tasks apart."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.distributed import gather_shares, local_share, moved
from ddn_lightning.errors import check_fraction, check_not_negative
from ddn_lightning.learner import Facts
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.methods.derpp import DERPlusPlus
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy


class XDER(DERPlusPlus):
    """X-DER (Boschini et al., TPAMI 2022, https://arxiv.org/abs/2201.00766) without its contrastive loss.

    DER++ whose stored logits are renewed: a stored sample has no meaningful ones for classes that came later, so they
    are *implanted* (:func:`implanted`) while it is replayed, and for all samples at a task's end. The incoming batch is
    classified among the classes of its task, memory among those of earlier tasks. Two margins keep them comparable:
    logits of classes still to come stay below those of a sample's task, and probabilities of earlier classes below
    those of the incoming task. The contrastive loss that prepares classes to come is left out.

    Needs task boundaries; storage and the cost of a step are those of DER++. The loss is that of ``xder.py`` in the
    paper's release, Mammoth's tag ``tpami2023``. Readings: only classes seen are predicted, as in later versions of
    Mammoth, since nothing but a margin holds the others down; the memory is filled during a task, where the authors
    fill a class-balanced one at its end (``memory=ClassBalancedReservoir`` is similar), and its logits are then
    measured with the BatchNorm statistics of the memory, not augmented, where theirs are those of single batches; only
    the draw whose labels are rehearsed is implanted and has a margin; and margins are averaged over all samples of
    a batch, and those of the two batches added, where theirs have one average, over the samples that break them.

    Args:
        alpha: Weight of the distance to the stored logits. Published for CIFAR-100: 0.3 for 500 samples, 0.6 for 2000.
        gamma: Highest implanted logit, as a fraction of the stored one of the true class. Published: 0.85.
        constraint_weight: Weight of both margins: the release's default. Published for CIFAR-100: 0.001 and 0.01.
        margin: Both margins: the release's default. Published for CIFAR-100: 0.7 and 0.2.
        **kwargs: Arguments of :class:`DERPlusPlus`. Published for CIFAR-100: a ``beta`` of 0.8 and 0.9. ``mask_unseen``
            is always on.
    """

    facts = Facts(
        key="x_der",
        title="X-DER without contrast",
        reference="[Boschini et al. 2022](https://arxiv.org/abs/2201.00766)",
        stores="outputs",
        cost="a second draw from memory; at a task's end a pass over the memory",
    )

    replay_from_task = 2
    needs_disjoint_classes = "it tells the classes of a sample's task from those of earlier and of later ones"
    memory: SlotBuffer
    memory_class = SlotBuffer
    times_drawn: Tensor  # (buffer_size), in the current task

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.1,
        gamma: float = 0.85,
        constraint_weight: float = 0.1,
        margin: float = 0.3,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, alpha=alpha, **kwargs)
        check_fraction(gamma=gamma)
        check_not_negative(constraint_weight=constraint_weight, margin=margin)
        self.gamma = gamma
        self.constraint_weight = constraint_weight
        self.margin = margin
        self.mask_unseen = True
        self.register_buffer("times_drawn", torch.zeros(self.buffer_size, dtype=torch.long))
        self._replayed: tuple[Samples, Tensor] | None = None  # in the current step, with their logits

    def resize(self, buffer_size: int) -> None:
        """Change the number of slots."""
        super().resize(buffer_size)
        self.times_drawn = self.times_drawn.new_zeros(buffer_size)

    @property
    def _is_new_class(self) -> Tensor:
        return moved(self.sequence.is_class_of_task[self.task], self.device)

    @property
    def _is_old_class(self) -> Tensor:
        return self.is_seen_class & ~self._is_new_class

    def retrieve(self, current: Samples) -> list[Samples]:
        """Draws from earlier tasks."""
        draws = [self.draw_memory(self.old_tasks) for _ in range(self.memory_draws)]
        return [draw for draw in draws if draw is not None]

    def current_loss(self, current: Samples) -> ReplayLoss:
        """Cross-entropy among the classes of the task, and the margins."""
        logits, is_new = self.logits_of(current), self._is_new_class
        probabilities = among(self.is_seen_class, logits).softmax(dim=1)
        to_old = self._margin(current, probabilities.detach(), self._is_old_class, probabilities, is_new)
        to_come = self._margin(current, logits, ~self.is_seen_class, logits, is_new)
        return ReplayLoss(cross_entropy(among(is_new, logits), current) + to_old + to_come, logits)

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """DER++'s loss, with labels of memory classified among old classes, and the margins."""
        loss, replayed = super().loss(current, *memory), memory[-1]
        logits = loss.memory_logits
        assert logits is not None
        self._replayed = replayed, logits.detach()
        is_own = moved(self.sequence.is_class_of_task[replayed.tasks], self.device)
        rehearsal = self.beta * cross_entropy(among(self._is_old_class, logits), replayed)
        to_come = self._margin(replayed, logits, ~self.is_seen_class, logits, is_own)
        return replace(loss, other=loss.other + to_come, rehearsal=rehearsal)

    def _margin(self, samples: Samples, scores: Tensor, is_other: Tensor, own_scores: Tensor, is_own: Tensor) -> Tensor:
        """By how much the highest score of other classes is not a margin below that of the own ones, weighted."""
        other, own = among(is_other, scores).amax(dim=1), among(is_own, own_scores).amax(dim=1)
        return self.constraint_weight * samples.mean((other - own + self.margin).clamp_min(0))

    def after_step(self) -> None:
        """Implant the logits of replayed samples, each with a chance of 1 in the times it was drawn in this task."""
        if self._replayed is None:
            return
        (replayed, logits), self._replayed = self._replayed, None
        assert replayed.slots is not None
        assert replayed.logits is not None
        own = moved(replayed.slots, self.device)
        slots = gather_shares(own, replayed.total)
        self.times_drawn[slots] += 1
        chance = moved(local_share(torch.rand(replayed.total, generator=self.streams["implant"])), self.device)
        new = implanted(replayed.logits, logits, replayed.labels, ~self._is_old_class, self.gamma)
        new = torch.where((chance * self.times_drawn[own] < 1)[:, None], new, replayed.logits)
        self.memory.overwrite_logits(slots, gather_shares(new, replayed.total))

    def end_task(self) -> None:
        """Measure the logits of the task's samples, and implant those of earlier ones."""
        slots, is_old = self.memory.slots, self._is_old_class
        stored = self.memory[slots]
        assert stored.logits is not None
        assert stored.tasks is not None
        with self.calibrated(self.calibrated_buffers(self.replay_batch_size)):  # as it is replayed, not as it is tested
            logits = self.adapted(self.outputs_of(self.network, stored))
        new = implanted(logits, logits, stored.labels, is_old, self.gamma)
        old = implanted(stored.logits, logits, stored.labels, ~is_old, self.gamma)
        is_new = moved(stored.tasks == self.task, self.device)
        self.memory.overwrite_logits(slots, torch.where(is_new[:, None], new, old))
        self.times_drawn.zero_()


def among(is_class: Tensor, logits: Tensor) -> Tensor:
    """The logits, with the lowest number for other classes."""
    return logits.masked_fill(~is_class, torch.finfo(logits.dtype).min)


def implanted(stored: Tensor, logits: Tensor, labels: Tensor, is_implanted: Tensor, gamma: float) -> Tensor:
    r"""Stored logits z with those of some classes C replaced by new ones f, scaled where they exceed that of the label.

    .. math:: z_c \leftarrow s f_c \; (c \in C), \qquad
              s = \gamma z_y / \max_C f \text{ if } \max_C f > z_y, \text{ else } 1

    Where the stored logit of the label is negative, the factor may be so too and turn the order of the new ones, as in
    the authors' code.

    >>> stored, logits = torch.tensor([[4.0, 1.0, 0.0]]), torch.tensor([[9.0, 9.0, 8.0]])
    >>> implanted(stored, logits, torch.tensor([0]), torch.tensor([False, False, True]), gamma=0.5)
    tensor([[4., 1., 2.]])

    Args:
        stored: Stored logits (samples, num_classes).
        logits: New logits.
        labels: Class of each sample.
        is_implanted: The classes whose logits are replaced (num_classes).
        gamma: The highest new logit, where scaled, as a fraction of the stored one of the true class.
    """
    own = stored.gather(1, labels[:, None])
    highest = among(is_implanted, logits).amax(dim=1, keepdim=True)
    return torch.where(is_implanted, torch.where(highest > own, gamma * own / highest, 1) * logits, stored)
