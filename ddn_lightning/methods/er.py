"""Experience Replay: replay a draw from memory with every batch."""

from typing import Any, Literal

from torch import Tensor

from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import ConfigurationError, check_not_negative
from ddn_lightning.samples import Samples, concatenate, cross_entropy, hard_label_losses


class ER(ReplayMethod):
    """Experience Replay (Ratcliff 1990; Chaudhry et al. 2019, https://arxiv.org/abs/1902.10486).

    Minimises the cross-entropy of the incoming batch plus that of a draw from memory. With ``batches="separate"``, as
    in the DDN paper, each is forwarded separately with its own BatchNorm statistics, and their means are summed. With
    ``"concatenated"``, as in Mammoth, they are forwarded together and averaged over all samples.

    The memory is a reservoir by default, a uniform sample of all samples seen. Memory, optimizer and distiller are
    arguments of :class:`ReplayMethod`. One ``fit`` learns all tasks of a :class:`TaskSequence` and fills
    ``accuracy_matrix``, one row per task.

    Args:
        batches: Whether the incoming and the replayed batch are forwarded together.
        replay_weight: Weight of the memory term; 2 is the control for methods that replay twice.
        **kwargs: Arguments of :class:`ReplayMethod`.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from ddn_lightning import SmallNet, SplitDigits
        >>> method = ER(SmallNet(), num_classes=10, buffer_size=100)
        >>> data = SplitDigits(epochs_per_task=5, batch_size=16)
        >>> Trainer(max_epochs=-1).fit(method, data)  # doctest: +SKIP
        >>> method.accuracy_matrix[-1]  # accuracy of each task at the end, in percent  # doctest: +SKIP
    """

    facts = Facts("er", "ER", "[Chaudhry et al. 2019](https://arxiv.org/abs/1902.10486)")

    def __init__(
        self,
        *args: Any,
        batches: Literal["separate", "concatenated"] = "separate",
        replay_weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_not_negative(replay_weight=replay_weight)
        if batches == "concatenated" and self.batch_norm.running_statistics == "memory":
            raise ConfigurationError(
                "running_statistics=memory needs batches=separate: concatenated batches share their statistics"
            )
        self.batches = batches
        self.replay_weight = replay_weight

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """Cross-entropy on both batches."""
        (replayed,) = memory
        if self.batches == "concatenated":
            return self._concatenated_loss(current, replayed)
        logits = self.logits_of(current)
        memory_logits = self.logits_of(replayed)
        rehearsal = self.replay_weight * replayed.mean(self.replay_losses(memory_logits, replayed))
        return ReplayLoss(cross_entropy(logits, current), logits, rehearsal, memory_logits, self.replay_weight)

    def replay_losses(self, logits: Tensor, replayed: Samples) -> Tensor:
        """The loss of each replayed sample on its label."""
        return hard_label_losses(logits, replayed)

    def _concatenated_loss(self, current: Samples, replayed: Samples) -> ReplayLoss:
        both = concatenate([current, replayed])
        logits = self.adapted(self(both.images))
        new, old = logits[: len(current)], logits[len(current) :]
        losses = hard_label_losses(new, current)
        rehearsal = self.replay_weight * both.mean(self.replay_losses(old, replayed))
        weight = self.replay_weight * replayed.total / both.total
        return ReplayLoss(both.mean(losses), new, rehearsal, old, weight)
