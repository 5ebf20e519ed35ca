"""The contract of a replay method, and the only training step in the package."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback
from torch import Tensor

from ddn_lightning.callbacks.distill_net_snapshot import DistillNetSnapshot
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.logged_curves import LoggedCurves, is_logged
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.checkpoint.resumable import check_resumable
from ddn_lightning.descent import gradient_of_sum
from ddn_lightning.distill.distiller import LabelDistiller
from ddn_lightning.distributed import batch_norm_statistics, local_share, sum_across_ranks
from ddn_lightning.errors import ConfigurationError, check_fraction, check_momentum, check_not_negative, check_positive
from ddn_lightning.memory.exemplars import ExemplarSet
from ddn_lightning.memory.memory import Memory
from ddn_lightning.memory.reservoir import ReservoirBuffer
from ddn_lightning.methods.calibrated_learner import CalibratedLearner
from ddn_lightning.methods.check_trainer import check_schedule, check_trainer
from ddn_lightning.methods.replay_loss import ReplayLoss as ReplayLoss  # methods import both from here
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.random_streams import OLD_MEMORY
from ddn_lightning.samples import Samples, cross_entropy


class ReplayMethod(CalibratedLearner, ABC):
    """Learns a task sequence while rehearsing samples from a memory.

    A method says what its loss is, in :meth:`loss`; where its paper needs more, it also overrides :meth:`current_loss`,
    :meth:`stream`, :meth:`begin_task`, :meth:`end_task` or :meth:`class_scores`. Drawing and augmenting memory, the
    optimizer, several devices and checkpoints are dealt with here. A loss is a mean by :meth:`Samples.mean`, so that
    gradients may simply be summed over devices, and takes its outputs by :meth:`logits_of`.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The method adds the head.
        num_classes: Number of classes of the whole sequence. The command line takes it from the data.
        buffer_size: Samples that the memory holds.
        replay_batch_size: Samples drawn from memory per step, over all devices together.
        lr: Learning rate of SGD.
        momentum: Momentum of SGD, below 1; it starts anew with each task.
        weight_decay: Weight decay of SGD.
        lr_milestones: Epochs *within a task* at which the learning rate is multiplied by ``lr_decay``.
        lr_decay: See ``lr_milestones``; from 0 to 1.
        distiller: Source of soft labels for what is replayed, such as :class:`DataDistillNet`, or ``None``.
        old_memory_weight: Weight of one more draw, from the memory of earlier tasks only, with its hard labels: the
            control of equal rehearsal for soft labels on old memory. 0 leaves the draw out.
        replay_steps: SGD steps per incoming batch, each with fresh draws and augmentation: the control of equal cost.
        **kwargs: Arguments of :class:`CalibratedLearner`.

    Example:
        >>> class PlainReplay(ReplayMethod):
        ...     def loss(self, current, *memory):
        ...         (replayed,) = memory  # one draw; there is always something in it
        ...         logits = self.logits_of(replayed)
        ...         loss = self.current_loss(current)
        ...         return replace(loss, rehearsal=cross_entropy(logits, replayed), memory_logits=logits)
        >>> from ddn_lightning import SmallNet
        >>> PlainReplay(SmallNet(), num_classes=10, buffer_size=50).memory.buffer_size
        50
    """

    memory_draws: ClassVar[int] = 1  # independent draws per step; 0 for a method without reservoir
    replay_from_task: ClassVar[int] = 0  # the first task, counted from 0, in which memory is replayed
    stores_logits: ClassVar[bool] = False  # whether the memory keeps the outputs of what it stores

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        buffer_size: int = 200,
        replay_batch_size: int = 32,
        lr: float = 0.03,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        lr_milestones: Sequence[int] = (),
        lr_decay: float = 0.1,
        distiller: LabelDistiller | None = None,
        old_memory_weight: float = 0.0,
        replay_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone=backbone, num_classes=num_classes, **kwargs)  # by name: jsonargparse needs to know
        self.save_hyperparameters(ignore=["backbone", "transform", "distiller"])
        check_positive(buffer_size=buffer_size, replay_batch_size=replay_batch_size, lr=lr, replay_steps=replay_steps)
        check_not_negative(weight_decay=weight_decay, lr_milestones=min(lr_milestones, default=0))
        check_not_negative(old_memory_weight=old_memory_weight)
        check_momentum(momentum=momentum)
        check_fraction(lr_decay=lr_decay)
        self.automatic_optimization = False
        self.replay_batch_size = replay_batch_size
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.lr_milestones = tuple(lr_milestones)
        self.lr_decay = lr_decay
        self.buffer_size = buffer_size
        self.memory = self.build_memory(seed=0)
        self.distiller = distiller
        self.old_memory_weight = old_memory_weight
        self.replay_steps = replay_steps
        if not self.memory_draws and (distiller is not None or old_memory_weight):
            given = "a distiller" if distiller is not None else f"old_memory_weight = {old_memory_weight}"
            raise ConfigurationError(f"{type(self).__name__} cannot take {given}: it replays no labels of memory")
        if distiller is not None:
            distiller.build(num_classes, buffer_size)

    def build_memory(self, seed: int) -> Memory:
        """An empty memory: by default a reservoir."""
        return ReservoirBuffer(self.buffer_size, seed)

    @property
    def kept(self) -> Memory | ExemplarSet | None:
        """Where samples of tasks that have ended are kept, if anywhere."""
        return self.memory if self.memory_draws else None

    def current_loss(self, current: Samples) -> ReplayLoss:
        """The loss on the incoming batch alone: all there is while nothing is replayed."""
        logits = self.logits_of(current)
        return ReplayLoss(cross_entropy(logits, current), logits)

    @abstractmethod
    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss of one step. All images are augmented and normalised.

        Args:
            current: The incoming batch.
            *memory: As many draws from memory as ``memory_draws``, none of them empty.
        """

    def after_step(self) -> None:
        """Work right after each SGD step."""

    def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
        """Take ``replay_steps`` steps on the method's loss, and hand the outputs before the last to the callbacks."""
        for _ in range(self.replay_steps):
            value, loss = self._step(batch)
        if is_logged(self.trainer):  # not in each step: a call costs half a millisecond
            self.look_at_losses()
            # on the host, as Lightning reads what is on the progress bar after every step from now on
            self.log("train/loss", value.cpu(), prog_bar=True)
        return {"loss": value, "logits": loss.current_logits.detach()}

    def _step(self, batch: Samples) -> tuple[Tensor, ReplayLoss]:
        """Augment, draw memory, take one SGD step, and let the distiller learn; returns the loss over all ranks."""
        current = self.augment(batch)
        if self.distiller is not None:
            self.distiller.before_step(self, current)
        memory = self._replay()
        loss = self.loss(current, *memory) if memory else self.current_loss(current)
        old = self.draw_memory(self.old_tasks, self.streams[OLD_MEMORY]) if memory and self.old_memory_weight else None
        if old is not None:
            loss = loss.with_term(lambda: self.old_memory_weight * cross_entropy(self.logits_of(old, True), old))
        if self.distiller is not None:
            loss = self.distiller.add_to(loss, self, memory)
        value = self._descend(loss)
        self.note_loss(value)
        self.after_step()
        if self.distiller is not None:
            self.distiller.update(self, current)
        return value, loss

    def augment(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """The samples with augmented and normalised images."""
        assert self.transform is not None
        generator = self.streams["augment"] if generator is None else generator
        images = self.transform(samples.images, generator, samples.total)
        return replace(samples, images=images.to(self.dtype))

    def draw_memory(
        self, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None
    ) -> Samples | None:
        """An augmented draw from memory, or ``None`` if there is nothing to draw.

        Args:
            tasks: Draw only from these tasks; :attr:`old_tasks` gives the old memory.
            generator: Stream for a draw besides the method's own ones, which it leaves as they would have been.
        """
        slots = self.memory.draw(self.replay_batch_size, tasks, generator)
        return self.stored(slots, generator) if len(slots) else None

    def stored(self, slots: Tensor, generator: torch.Generator | None = None) -> Samples:
        """What these slots of the memory hold, augmented: this rank's share of it."""
        share = replace(self.memory[local_share(slots)], global_size=len(slots))
        return self.augment(share, generator)

    def _replay(self) -> list[Samples]:
        if self.task < self.replay_from_task:
            return []
        draws = [self.draw_memory() for _ in range(self.memory_draws)]
        found = [draw for draw in draws if draw is not None]
        self.is_replaying = bool(found)
        return found

    def _descend(self, loss: ReplayLoss) -> Tensor:
        """One SGD step; returns the loss over all ranks."""
        optimizer = self.classifier_optimizer
        if not self.has_own_optimizer:  # what is given counts, not what a checkpoint has brought along
            given = {"lr": self.current_lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
            optimizer.param_groups[0].update(given)  # any further group is a callback's
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        # by hand instead of by DDP's hooks: exact for any number of losses and optimizers, and nothing to configure
        value, gradients = gradient_of_sum([lambda: loss.total, *loss.further], parameters)
        used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        statistics = batch_norm_statistics(self)
        value, *summed = sum_across_ranks([value, *(g for _, g in used), *statistics])
        optimizer.zero_grad()
        for (parameter, _), gradient in zip(used, summed, strict=False):
            parameter.grad = gradient
        for statistic, total in zip(statistics, summed[len(used) :], strict=True):
            statistic.copy_(total / self.trainer.world_size)
        optimizer.step()
        return value

    @property
    def current_lr(self) -> float:
        """The learning rate, decayed at each milestone of the current task; that of one's own optimizer as it is."""
        if self.has_own_optimizer:
            lr: float = self.classifier_optimizer.param_groups[0]["lr"]
            return lr
        if not self.lr_milestones:
            return self.lr
        epoch_in_task = self.sequence.current_epoch % self.sequence.epochs_per_task
        return self.lr * self.lr_decay ** sum(epoch_in_task >= milestone for milestone in self.lr_milestones)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """SGD over the classifier, and what the distiller learns with.

        An override is taken as it is: ``lr``, ``momentum`` and ``weight_decay`` are not set on its optimizer.
        """
        learned = set() if self.distiller is None else set(self.distiller.parameters())
        parameters = [p for p in self.parameters() if p.requires_grad and p not in learned]
        sgd = torch.optim.SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        optimizers = [sgd, None if self.distiller is None else self.distiller.configure_optimizer()]
        return [optimizer for optimizer in optimizers if optimizer is not None]

    @property
    def has_own_optimizer(self) -> bool:
        """Whether :meth:`configure_optimizers` is overridden."""
        # not Lightning's is_overridden, which takes ten times as long and would be called eight times in each step
        return getattr(self.configure_optimizers, "__func__", None) is not ReplayMethod.configure_optimizers

    def configure_callbacks(self) -> list[Callback]:
        """What the method cannot do without, unless the user brought their own. It is the first hook of all."""
        if self.trainer.state.fn == "fit":
            check_trainer(self.trainer)
        needed: list[Callback] = [Forgetting(), RandomState(), LoggedCurves()]
        if self.memory_draws:
            needed.insert(0, ReservoirSampling())
        if self.distiller is not None:
            needed.append(DistillNetSnapshot())
        present = self.trainer.callbacks  # type: ignore[attr-defined]
        return [callback for callback in needed if not any(isinstance(p, type(callback)) for p in present)]

    def setup(self, stage: str) -> None:
        """For a fit, begin with an empty memory."""
        super().setup(stage)
        if stage != "fit":
            return
        self.memory = self.build_memory(seed=self.streams["memory"].initial_seed())
        if self.distiller is not None:
            self.distiller.begin_fit(self)

    def on_fit_start(self) -> None:
        """Refuse what does not go together, now that the optimizers are there."""
        super().on_fit_start()
        check_schedule(self.trainer, self.lr_milestones if self.has_own_optimizer else ())
        if self.distiller is not None:
            self.distiller.check(self)

    def _check_training_state(self, checkpoint: dict[str, Any], checkpoint_format: int) -> None:
        needed = (Forgetting, RandomState, ReservoirSampling)
        optimizers = self.configure_optimizers()
        check_resumable(checkpoint, checkpoint_format, self.trainer, self.sequence, optimizers, needed)

    def _enter_task(self, task: int) -> None:
        self.classifier_optimizer.state.clear()  # momentum of the task before
        if self.distiller is not None:
            self.distiller.begin_task(self.is_seen_class)
        super()._enter_task(task)

    @property
    def classifier_optimizer(self) -> torch.optim.Optimizer:
        """SGD, or one's own. Its steps are Lightning's ``global_step``."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer

    @property
    def distiller_optimizer(self) -> torch.optim.Optimizer:
        """The distiller's, not wrapped by Lightning: its steps are not to be counted a second time."""
        optimizers = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizers, list)
        return optimizers[1]
