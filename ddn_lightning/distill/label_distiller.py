"""The contract of a source of soft labels, which any replay method takes as its ``distiller``."""

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddn_lightning.construction import Constructed
from ddn_lightning.distributed import local_share
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive
from ddn_lightning.facts import Facts
from ddn_lightning.learner import Learner
from ddn_lightning.random_streams import OLD_MEMORY, RandomStreams
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples

DRAWS = "distiller"  # the random stream of what a distiller draws to learn by


class LabelDistiller(Constructed, nn.Module, ABC):
    """Adds a term to a method's loss: the cross-entropy of replayed samples with soft labels.

    Which samples: by default a draw of its own from the *old memory*, the samples of earlier tasks (the memory
    :math:`M^{n-1}` of Eq. 7); the method's own terms stay as they are. Where labels are learned, they are updated after
    the classifier's step.

    Args:
        alpha: Weight of the term. 0 is exactly the method alone.
        memory: What the term rehearses: ``old``, a draw of its own from earlier tasks, or ``running``, the samples that
            the method rehearses anyway.
        compose: ``additive`` keeps the method's hard-label loss on memory; ``replace`` puts the soft-label loss in its
            place, and needs ``memory="running"``.
        apply_from_task: First task, counted from 1, in which the term is added.
    """

    facts: ClassVar[Facts]  # what tables say of it
    streams: RandomStreams  # the method's, so that they are saved with it
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
            samples: What was drawn from memory.
            probabilities: The network's current prediction for it, without gradient.
        """

    def build(self, num_classes: int, buffer_size: int) -> None:
        """Make what depends on the number of classes or slots, without drawing from the global random state."""
        self.register_buffer("is_old_class", torch.zeros(num_classes, dtype=torch.bool))

    def configure_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of what is learned, if anything is."""
        return None

    def before_step(self, method: Learner, current: Samples) -> None:
        """Learn from the incoming batch, augmented, that the classifier has not yet stepped on."""

    def update(self, method: Learner, current: Samples) -> None:
        """Learn better labels, right after the classifier's step.

        Args:
            method: The method that has just stepped.
            current: Its incoming batch, augmented.
        """

    def begin_fit(self, method: Learner) -> None:
        """Training starts, with an empty memory."""
        self.streams = method.streams

    def check(self, method: Learner) -> None:
        """Refuse a method that it cannot work with. Training is about to start, and the optimizers are there."""
        check_host(method)

    def begin_task(self, is_old_class: Tensor) -> None:
        """A task begins; these are the classes of those before it."""
        self.is_old_class = is_old_class.clone()

    def snapshot(self) -> None:
        """A task has ended."""

    def reset_slots(self, slots: Tensor) -> None:
        """These slots of the memory hold other samples now."""

    def add_to(self, loss: ReplayLoss, method: Learner, current: Samples) -> ReplayLoss:
        """The method's loss with the soft-label term, where it applies (Eq. 7).

        Args:
            loss: What the method minimises in this step.
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
        return loss.with_term(lambda: self._soft_loss(old, method.logits_of(old, is_extra=True)))

    def _soft_loss(self, samples: Samples, logits: Tensor) -> Tensor:
        with torch.no_grad():
            labels = self.soft_labels(samples, logits.softmax(dim=1))
        return self.alpha * soft_cross_entropy(logits, samples, labels)


def one_hot(samples: Samples, like: Tensor) -> Tensor:
    """The hard labels in the shape and type of a distribution over all classes.

    >>> one_hot(Samples(torch.zeros(2, 1, 8, 8), torch.tensor([2, 0])), like=torch.zeros(2, 3))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return functional.one_hot(samples.labels, like.shape[1]).to(like.dtype)


def soft_cross_entropy(logits: Tensor, samples: Samples, labels: Tensor) -> Tensor:
    """Mean cross-entropy with a distribution as each sample's label.

    >>> samples = Samples(torch.zeros(1, 1, 8, 8), torch.tensor([0]))
    >>> soft_cross_entropy(torch.tensor([[0.0, 0.0]]), samples, torch.tensor([[0.7, 0.3]]))
    tensor(0.6931)
    """
    return samples.mean(-(labels * logits.log_softmax(dim=1)).sum(dim=1))


def rehearsed_logits(method: Learner, loss: ReplayLoss) -> Tensor:
    """The outputs for what is replayed. Refuses a method whose loss has no labels of memory to soften.

    Args:
        method: The method.
        loss: What it minimises in a step that replays something.
    """
    if loss.rehearsal is None or loss.memory_logits is None:
        raise ConfigurationError(
            f"{type(method).__name__} cannot take a distiller: its loss has no labels of memory to soften (it "
            "returns a ReplayLoss without rehearsal and memory_logits)"
        )
    return loss.memory_logits


def check_host(method: Learner) -> None:
    """Refuse such a method before it has trained, though it may replay in later tasks only.

    Its loss is tried out on a copy that is thrown away, in evaluation mode, with two training samples as the incoming
    batch and, at first, as the memory. A loss that cannot be computed so may still be in order: the first step that
    replays something will tell.

    Args:
        method: A method that has a distiller, about to be trained.
    """
    on_device = [method.device] if method.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(on_device), method.trainer.precision_plugin.train_step_context():
            loss = _tried_loss(method)
    except Exception:  # whatever a user's loss may need that is only there in training
        return
    rehearsed_logits(method, loss)


def _tried_loss(method: Learner) -> ReplayLoss:
    trial = copy.deepcopy(method).eval()
    trial.trainer = method.trainer
    trial.task = max(method.task, method.replay_from_task)
    vars(trial).update(log=_log_nothing, log_dict=_log_nothing)
    data = method.sequence.train_set
    whole = torch.arange(2 * method.trainer.world_size) % len(data)  # two for each rank
    trial.memory.to(method.device)
    if not len(trial.memory):
        logits = torch.zeros(len(whole), method.num_classes, device=method.device) if method.stores_logits else None
        trial.memory.add(replace(data[whole].to(method.device), logits=logits), trial)
    share = replace(data[local_share(whole)].to(method.device), global_size=len(whole))
    drawn = [trial.draw_memory() for _ in range(trial.memory_draws)]
    return trial.loss(trial.augment(share), *[draw for draw in drawn if draw is not None])


def _log_nothing(*_: object, **__: object) -> None:
    """In place of Lightning's, which refuses before training."""
