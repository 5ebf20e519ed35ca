"""Readings of Algorithms 1 and 2 that are nearer to the letter of the paper than the default.

Each is run by its import path: ``ddn fit ... --model.distiller study.paper_readings.SeveralUpdates``. G_old in the
inner loop is :class:`study.other_readings.WithinMixture`; one outer batch of M^{n-1} and the incoming batch is
:class:`study.other_readings.OneOuterBatch` with ``outer: current_and_old_memory``.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddn_lightning import ER, DataDistillNet, Samples
from ddn_lightning.distill import hypergradient
from ddn_lightning.distill.label_distiller import DRAWS
from ddn_lightning.distill.learner import Learner
from ddn_lightning.errors import check_positive
from ddn_lightning.samples import concatenate


class OldMemoryER(ER):
    """ER that replays M^{n-1} only: in task n its draw is from the samples of earlier tasks.

    With ``DataDistillNet(memory="running", compose="replace")`` its loss is Eq. 7 to the letter,
    L(T^n) + alpha L(M^{n-1} with soft labels), on one batch of each. Alone it is the control with hard labels.
    """

    def retrieve(self, current: Samples) -> list[Samples]:
        """A draw from old memory; none in the first task."""
        old = self.draw_memory(self.old_tasks)
        return [] if old is None else [old]


class FreshOuter(DataDistillNet):
    """The outer loss on one minibatch of M^{n-1} u T^n, with a fresh sample of the task, all of which must be at hand.

    That is so offline. The minibatch has as many samples as an incoming and a replayed batch together.

    Args:
        balanced: Whether half of it is from the task and half from old memory; otherwise it is uniform over both.
        **kwargs: Arguments of :class:`DataDistillNet`.
    """

    def __init__(self, balanced: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.balanced = balanced

    def outer_batch(self, method: Learner, current: Samples) -> list[Samples]:
        """The minibatch, forwarded at once."""
        generator = method.streams[DRAWS]
        task, old = method.sequence.training_samples(method.task), method.memory.slots_of(method.old_tasks)
        size = method.replay_batch_size
        from_task = size
        if not self.balanced:
            order = torch.randperm(len(task) + len(old), generator=generator)[: 2 * size]
            from_task = int((order < len(task)).sum())
            size = len(order) - from_task
        chosen = torch.randperm(len(task), generator=generator)[:from_task]
        parts = [method.augment(task[chosen].to(method.device), generator)] if from_task else []
        memory = method.draw_memory(method.old_tasks, generator, size) if size else None
        return [concatenate([*parts, *([] if memory is None else [memory])])]


class SeveralUpdates(DataDistillNet):
    """Algorithm 2's own loop: several updates of G for each step of the classifier.

    Args:
        updates_per_step: How many.
        **kwargs: Arguments of :class:`DataDistillNet`.
    """

    def __init__(self, updates_per_step: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(updates_per_step=updates_per_step)
        self.updates_per_step = updates_per_step

    def update(self, method: Learner, current: Samples) -> None:
        """Update G with new draws each time."""
        for _ in range(self.updates_per_step):
            super().update(method, current)


class FromSecondTask(DataDistillNet):
    """G learns from the second task on, as M^0 is empty and as in CBA; there is no G_old before the third."""

    def update(self, method: Learner, current: Samples) -> None:
        """Update G, if there is an earlier task."""
        if method.task > 0:
            super().update(method, current)

    def snapshot(self) -> None:
        """Copy G to G_old, unless it has not learned yet."""
        if self.is_old_class.any():
            super().snapshot()


class InnerRate(DataDistillNet):
    """The virtual step has a learning rate of its own, eta of Appendix A; ``exact`` only.

    Args:
        inner_lr: The learning rate.
        **kwargs: Arguments of :class:`DataDistillNet`.
    """

    def __init__(self, inner_lr: float = 0.03, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(inner_lr=inner_lr)
        self.inner_lr = inner_lr

    def surrogate_of(self, method: Learner, inner: Samples, outer: list[Samples]) -> Tensor:
        """A surrogate whose gradient is that of the outer loss after a step of this length."""
        network = self.frozen(method.network, method.moved_parameters)
        loss = partial(self.learned_inner_loss, inner)
        found = hypergradient.exact(network, inner, partial(loss, learn=False), outer, self.inner_lr)
        return hypergradient.surrogate(found, loss, self.inner_lr)
