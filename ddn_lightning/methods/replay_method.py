"""The contract of a replay method, and the only training step in the package."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback
from torch import Tensor

from ddn_lightning.callbacks.distill_net_snapshot import DistillNetSnapshot
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.logged_curves import LoggedCurves
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distributed import local_share
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive
from ddn_lightning.facts import Facts
from ddn_lightning.lightning_internals import batches_logged, is_logged
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.memory import Memory
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.methods.check_trainer import check_resumable, check_schedule, check_trainer
from ddn_lightning.methods.optimized_learner import OptimizedLearner
from ddn_lightning.methods.optimizers import bring_schedulers_to, step_schedulers
from ddn_lightning.methods.start_checks import check_start
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.random_streams import OLD_MEMORY
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples, cross_entropy


class ReplayMethod(OptimizedLearner, ABC):
    """Learns a task sequence while rehearsing samples from a memory.

    A method says what its loss is, in :meth:`loss`; where its paper needs more, it also overrides :meth:`current_loss`,
    :meth:`stream`, :meth:`begin_task`, :meth:`end_task` or :meth:`class_scores`. Drawing and augmenting memory, the
    optimizer, several devices and checkpoints are dealt with here. A loss is a mean by :meth:`Samples.mean`, so that
    gradients may simply be summed over devices, and takes its outputs by :meth:`logits_of`.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The method adds the head.
        num_classes: Number of classes of the whole sequence. The command line takes it from the data.
        buffer_size: Samples that the memory holds.
        memory: Which samples are kept: :class:`ReservoirBuffer` by default, :class:`ClassBalancedReservoir`,
            :class:`RingBuffer` or one's own :class:`Memory`. A size of its own wins over ``buffer_size``.
        replay_batch_size: Samples drawn from memory per step, over all devices together.
        distiller: Source of soft labels for what is replayed, such as :class:`DataDistillNet`, or ``None``.
        old_memory_weight: Weight of one more draw, from the memory of earlier tasks only, with its hard labels: the
            control of equal rehearsal for soft labels on old memory. 0 leaves the draw out.
        replay_steps: SGD steps per incoming batch, each with fresh draws and augmentation: the control of equal cost.
        **kwargs: Arguments of :class:`OptimizedLearner`, such as ``lr``, and of :class:`CalibratedLearner`.

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

    facts: ClassVar[Facts]  # what tables say of it
    memory_draws: ClassVar[int] = 1  # independent draws per step; 0 for a method without reservoir
    replay_from_task: ClassVar[int] = 0  # the first task, counted from 0, in which memory is replayed
    stores_logits: ClassVar[bool] = False  # whether the memory keeps the outputs of what it stores
    distiller: LabelDistiller | None

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        buffer_size: int = 200,
        replay_batch_size: int = 32,
        distiller: LabelDistiller | None = None,
        memory: Memory | None = None,
        old_memory_weight: float = 0.0,
        replay_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone=backbone, num_classes=num_classes, **kwargs)  # by name: jsonargparse needs to know
        self.save_hyperparameters(ignore=["backbone", "transform", "distiller", "memory", "optimizer", "lr_scheduler"])
        check_positive(buffer_size=buffer_size, replay_batch_size=replay_batch_size, replay_steps=replay_steps)
        check_not_negative(old_memory_weight=old_memory_weight)
        self.replay_batch_size = replay_batch_size
        self.memory = ReservoirBuffer() if memory is None else memory
        self.buffer_size = self.memory.buffer_size or buffer_size
        self.memory.reset(self.buffer_size, seed=0)
        self.distiller = distiller
        self.old_memory_weight = old_memory_weight
        self.replay_steps = replay_steps
        if not self.memory_draws and (distiller is not None or old_memory_weight):
            given = "a distiller" if distiller is not None else f"old_memory_weight = {old_memory_weight}"
            raise ConfigurationError(f"{type(self).__name__} cannot take {given}: it replays no labels of memory")
        if distiller is not None:
            distiller.build(num_classes, self.buffer_size)

    @property
    def stored_samples(self) -> Memory | ExemplarSet | None:
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
        clock = self.sequence.clock
        bring_schedulers_to(self, clock.epoch if self.schedule is None else clock.epoch_in_task)
        for _ in range(self.replay_steps):
            value, loss = self._step(batch)
        if is_logged(self.trainer):  # not in each step: a call costs half a millisecond
            self.look_at_losses()
            # on the host, as Lightning reads what is on the progress bar after every step from now on
            self.log("train/loss", value.cpu(), prog_bar=True)
        step_schedulers(self, batches_logged(self.trainer) + 1)
        return {"loss": value, "logits": loss.current_logits.detach()}

    def _step(self, batch: Samples) -> tuple[Tensor, ReplayLoss]:
        """Augment, draw memory, take one SGD step, and let the distiller learn; returns the loss over all ranks."""
        current = self.augment(batch)
        if self.distiller is not None:
            self.distiller.before_step(self, current)
        memory = self.retrieve(current) if self.task >= self.replay_from_task else []
        self.is_replaying = bool(memory)
        loss = self.loss(current, *memory) if memory else self.current_loss(current)
        if memory and loss.rehearsed is None:
            loss = replace(loss, rehearsed=memory[-1])
        old = self.draw_memory(self.old_tasks, self.streams[OLD_MEMORY]) if memory and self.old_memory_weight else None
        if old is not None:
            loss = loss.with_term(lambda: self.old_memory_weight * cross_entropy(self.logits_of(old, True), old))
        if self.distiller is not None:
            loss = self.distiller.add_to(loss, self, current)
        value = self.descend(loss)
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

    def retrieve(self, current: Samples) -> list[Samples]:
        """What is replayed in a step: ``memory_draws`` draws, none of them empty.

        Override it to choose by what comes in, as MIR does; a choice is best made among the samples of
        :meth:`draw_memory`, each rank among its share.

        Args:
            current: The incoming batch, augmented.
        """
        draws = [self.draw_memory() for _ in range(self.memory_draws)]
        return [draw for draw in draws if draw is not None]

    def draw_memory(
        self,
        tasks: Iterable[int] | None = None,
        generator: torch.Generator | None = None,
        size: int | None = None,
    ) -> Samples | None:
        """An augmented draw from memory, or ``None`` if there is nothing to draw.

        Args:
            tasks: Draw only from these tasks; :attr:`old_tasks` gives the old memory.
            generator: Stream for a draw besides the method's own ones, which it leaves as they would have been.
            size: Samples over all ranks; ``replay_batch_size`` by default.
        """
        slots = self.memory.draw(self.replay_batch_size if size is None else size, tasks, generator)
        return self.stored(slots, generator) if len(slots) else None

    def stored(self, slots: Tensor, generator: torch.Generator | None = None) -> Samples:
        """What these slots of the memory hold, augmented: this rank's share of it."""
        share = replace(self.memory[local_share(slots)], global_size=len(slots))
        return self.augment(share, generator)

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
        self.memory.reset(self.buffer_size, seed=self.streams["memory"].initial_seed())
        if self.distiller is not None:
            self.distiller.begin_fit(self)

    def on_fit_start(self) -> None:
        """Refuse what does not go together, now that the optimizers are there."""
        super().on_fit_start()
        check_schedule(self.trainer, self.lr_milestones if self.has_own_optimizer else ())
        check_start(self)
        if self.distiller is not None:
            self.distiller.check(self)

    def _check_training_state(self, checkpoint: dict[str, Any], checkpoint_format: int) -> None:
        needed = (Forgetting, RandomState, ReservoirSampling)
        configured = self.configure_optimizers()
        optimizers = configured[0] if isinstance(configured, tuple) else configured
        check_resumable(checkpoint, checkpoint_format, self.trainer, self.sequence, optimizers, needed)

    def _enter_task(self, task: int) -> None:
        if self.distiller is not None:
            self.distiller.begin_task(self.is_seen_class)
        super()._enter_task(task)
