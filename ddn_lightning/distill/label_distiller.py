"""The base class of distillers, which make soft labels for any replay method."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.checkpoint.construction import Constructed
from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.distill.learner import Facts, Learner
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distill.term import Term
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive, check_returned
from ddn_lightning.random_streams import OLD_MEMORY, RandomStreams
from ddn_lightning.samples import Samples

DRAWS = "distiller"  # the random stream of a distiller's own draws


class LabelDistiller(Constructed, nn.Module, Term, ABC):
    """Adds a term to a method's loss: the cross-entropy of replayed samples with soft labels.

    By default the term has its own draw from the *old memory*, the samples of earlier tasks (the memory
    :math:`M^{n-1}` of Eq. 7), and leaves the method's terms unchanged. Learned labels are updated after the
    classifier's step, or with ``lookahead="delayed"`` by the gradients of the next one.

    Args:
        alpha: Weight of the term. 0 is exactly the method alone.
        memory: Samples of the term: ``old``, an additional draw from earlier tasks, or ``running``, the samples that
            the method replays anyway.
        compose: ``additive`` keeps the method's hard-label loss on memory; ``replace`` replaces it by the soft-label
            loss and needs ``memory="running"``.
        apply_from_task: First task, counted from 1, in which the term is added.
    """

    facts: ClassVar[Facts]
    is_taken = False  # by a method: two would share the labels
    streams: RandomStreams  # the method's, which saves them
    is_old_class: Tensor  # (num_classes)

    def __init__(
        self,
        alpha: float = 1.0,
        memory: Literal["old", "running"] = "old",
        compose: Literal["additive", "replace"] = "additive",
        apply_from_task: int = 2,
    ) -> None:
        super().__init__()
        check_not_negative(alpha=alpha)
        check_positive(apply_from_task=apply_from_task)
        if compose == "replace" and memory == "old":
            raise ConfigurationError("compose=replace needs memory=running: only the method's own draw can be replaced")
        self.alpha = alpha
        self.memory = memory
        self.compose = compose
        self.apply_from_task = apply_from_task

    @abstractmethod
    def soft_labels(self, samples: Samples, probabilities: Tensor) -> Tensor:
        """A distribution over all classes for each sample.

        Args:
            samples: A draw from memory.
            probabilities: The network's current predictions, without gradient.
        """

    def build(self, num_classes: int, buffer_size: int) -> None:
        """Create parameters and buffers, without drawing from the global random state."""
        self.register_buffer("is_old_class", torch.zeros(num_classes, dtype=torch.bool))

    def resize(self, buffer_size: int) -> None:
        """Change the number of slots before a fit, for a distiller with something for each of them."""

    def grow(self, num_classes: int) -> None:
        """Change the number of classes of what :meth:`build` has created; the labels of known classes stay."""
        self.is_old_class = resized(self.is_old_class, (num_classes,))

    def begin_fit(self, method: Learner) -> None:
        """Hook at the start of training, with an empty memory."""
        self.streams = method.streams

    def begin_task(self, is_old_class: Tensor) -> None:
        """Hook at the beginning of a task, with the classes of earlier tasks."""
        self.is_old_class = is_old_class.clone()

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """The method's loss with the soft-label term, where it applies (Eq. 7).

        Args:
            loss: The method's loss in this step.
            method: The method.
            current: Its incoming batch, augmented, for labels that depend on it.
        """
        if loss.rehearsed is None:
            return loss
        logits = rehearsed_logits(method, loss)
        if self.alpha == 0 or method.tasks_seen < self.apply_from_task:
            return loss
        if self.memory == "running":
            soft = self._soft_loss(loss.rehearsed, logits)
            if self.compose == "replace":
                return replace(loss, rehearsal=loss.rehearsal_weight * soft)
            return replace(loss, other=loss.other + soft)
        old = method.draw_memory(tasks=method.old_tasks, generator=method.streams[OLD_MEMORY])
        if old is None:
            return loss
        return loss.with_term(self.old_memory_term(method, old))

    def old_memory_term(self, method: Learner, old: Samples) -> Callable[[], Tensor]:
        """The term on a draw from the old memory, computed after the method's own terms."""
        return lambda: self._soft_loss(old, method.logits_of(old, is_extra=True))

    def _soft_loss(self, samples: Samples, logits: Tensor) -> Tensor:
        with torch.no_grad():
            labels = self.soft_labels(samples, logits.softmax(dim=1))
        return self.alpha * soft_cross_entropy(logits, samples, labels)


def one_hot(samples: Samples, like: Tensor) -> Tensor:
    """The hard labels as one-hot distributions, in the shape and dtype of ``like``.

    >>> one_hot(Samples(torch.zeros(2, 1, 8, 8), torch.tensor([2, 0])), like=torch.zeros(2, 3))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return functional.one_hot(samples.labels, like.shape[1]).to(like.dtype)


def soft_cross_entropy(logits: Tensor, samples: Samples, labels: Tensor) -> Tensor:
    """Mean cross-entropy with soft labels over the global batch.

    >>> samples = Samples(torch.zeros(1, 1, 8, 8), torch.tensor([0]))
    >>> soft_cross_entropy(torch.tensor([[0.0, 0.0]]), samples, torch.tensor([[0.7, 0.3]]))
    tensor(0.6931)
    """
    return samples.mean(-(labels * logits.log_softmax(dim=1)).sum(dim=1))


def rehearsed_logits(method: Learner, loss: ReplayLoss) -> Tensor:
    """The logits of the replayed samples; refuses a method whose loss does not contain them.

    Args:
        method: The method.
        loss: Its loss in a step with replay.
    """
    check_returned(f"loss of {type(method).__name__}", loss, ReplayLoss)
    if loss.rehearsal is None or loss.memory_logits is None:
        raise ConfigurationError(
            f"{type(method).__name__} cannot take a distiller: its loss has no labels of replayed samples to soften "
            "(it returns a ReplayLoss without rehearsal and memory_logits)"
        )
    return loss.memory_logits
