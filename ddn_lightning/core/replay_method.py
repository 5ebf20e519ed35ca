"""The contract of a replay method, and the only training step in the package."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.parsing import AttributeDict
from torch import Tensor, nn

from ddn_lightning.callbacks.distill_net_snapshot import DistillNetSnapshot
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.logged_curves import LoggedCurves
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling
from ddn_lightning.checkpoint.checkpoint_io import read_safely
from ddn_lightning.construction import named
from ddn_lightning.core.feature_cache import serve_features
from ddn_lightning.core.optimized_learner import OptimizedLearner
from ddn_lightning.core.start_checks import check_criterion, check_part, check_start, check_use
from ddn_lightning.core.trainer_checks import check_resumable, check_trainer
from ddn_lightning.data.rand_augment import RandAugment
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distributed import local_share
from ddn_lightning.errors import check_not_negative, check_positive, check_returned
from ddn_lightning.learner import Facts
from ddn_lightning.lightning_internals import has_trainer, is_logged
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.memory import Memory
from ddn_lightning.memory.reservoir_buffer import ReservoirBuffer
from ddn_lightning.networks.backbone import Backbone
from ddn_lightning.networks.frozen_features import check_holds_images, is_features
from ddn_lightning.notes import note
from ddn_lightning.precision import check_precision
from ddn_lightning.random_streams import OLD_MEMORY
from ddn_lightning.replay_loss import ReplayLoss
from ddn_lightning.samples import Criterion, Samples, cross_entropy

NOT_PLAIN = [
    "backbone",
    "transform",
    "distiller",
    "memory",
    "optimizer",
    "lr_scheduler",
    "criterion",
    "rand_augment",
]  # arguments


class ReplayMethod(OptimizedLearner, ABC):
    """Learns a task sequence while replaying samples from a memory.

    A method implements :meth:`loss` and, if its paper needs more, overrides :meth:`current_loss`, :meth:`stream`,
    :meth:`begin_task`, :meth:`end_task` or :meth:`class_scores`. This class draws and augments memory, steps the
    optimizer, and handles several devices and checkpoints. A loss takes logits from :meth:`logits_of` and averages with
    :meth:`Samples.mean`, so that gradients can be summed over devices.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The method adds the head.
        num_classes: Number of classes of the whole sequence, or more, for classes of later sequences. The command line
            takes it from the data.
        buffer_size: Number of samples in the memory.
        memory: Which samples to keep: :class:`ReservoirBuffer` by default, :class:`ClassBalancedReservoir`,
            :class:`GradientSelection`, :class:`LossAwareReservoir`, :class:`RingBuffer` or a user's :class:`Memory`.
            Its own size, if given, overrides ``buffer_size``.
        replay_batch_size: Samples drawn from memory per step, over all devices.
        distiller: Makes soft labels for replayed samples, such as :class:`DataDistillNet`.
        old_memory_weight: Weight of an additional draw from the memory of earlier tasks, with hard labels: the control
            of equal rehearsal for a distiller. 0 disables the draw.
        replay_steps: Optimizer steps per incoming batch, each with new draws and augmentation: the control of equal
            cost.
        criterion: The loss on hard labels, from logits and labels to the loss of each sample, as a loss of torch with
            ``reduction="none"``; by default cross-entropy. All draws use it, also those of distillers and controls.
            The mean is over samples, weighted or not.
        rand_augment: Stronger augmentation of all training images, before the crop and flip of ``transform``.
        **kwargs: Arguments of :class:`OptimizedLearner`, such as ``lr``, and of :class:`CalibratedLearner`.

    Example:
        >>> class PlainReplay(ReplayMethod):
        ...     def loss(self, current, *memory):
        ...         (replayed,) = memory  # one draw, never empty
        ...         logits = self.logits_of(replayed)
        ...         loss = self.current_loss(current)
        ...         return replace(loss, rehearsal=cross_entropy(logits, replayed), memory_logits=logits)
        >>> from ddn_lightning import SmallNet
        >>> PlainReplay(SmallNet(), num_classes=10, buffer_size=50).memory.buffer_size
        50
    """

    facts: ClassVar[Facts]
    memory_draws: ClassVar[int] = 1  # independent draws per step; 0 for methods that do not replay
    replay_from_task: ClassVar[int] = 1  # first task, counted from 1, in which memory is replayed
    stores_logits: ClassVar[bool] = False  # whether the memory stores logits with its samples
    rehearses_labels: ClassVar[bool] = True  # in its loss, where a distiller can soften them
    memory_class: ClassVar[type] = Memory  # that the method needs
    distiller: LabelDistiller | None
    criterion: Criterion | None

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
        criterion: Criterion | None = None,
        rand_augment: RandAugment | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone=backbone, num_classes=num_classes, **kwargs)  # by name, for jsonargparse
        self.save_hyperparameters(ignore=NOT_PLAIN)
        check_positive(buffer_size=buffer_size, replay_batch_size=replay_batch_size, replay_steps=replay_steps)
        check_not_negative(old_memory_weight=old_memory_weight)
        check_part(f"memory of {type(self).__name__}", memory, self.memory_class)
        check_part("distiller", distiller, LabelDistiller)
        check_part("rand_augment", rand_augment, RandAugment)
        check_use(type(self), distiller, memory, old_memory_weight)
        if criterion is not None:
            check_criterion(criterion, num_classes)
        object.__setattr__(self, "criterion", criterion)  # no part of the network, also if it is a module
        self.replay_batch_size = replay_batch_size
        self.memory = ReservoirBuffer() if memory is None else memory
        if self.memory.learning_rates:
            check_holds_images(self.backbone, type(self.memory).__name__)
        if rand_augment is not None:
            check_holds_images(self.backbone, "RandAugment", "changes")
        self.buffer_size = self._size_of_memory(buffer_size)
        self.memory.reset(self.buffer_size, seed=0)
        self.distiller = distiller
        self.old_memory_weight = old_memory_weight
        self.replay_steps = replay_steps
        self.rand_augment = rand_augment
        if distiller is not None:
            distiller.build(num_classes, self.buffer_size)
            distiller.is_taken = True
        self.memory.is_taken = True

    def _size_of_memory(self, buffer_size: int) -> int:
        """The size that the memory was given, if any, which is then recorded as the method's."""
        size = self.memory.buffer_size or buffer_size
        if self.constructor_arguments.get("buffer_size", size) != size:
            note(f"the memory has {size} slots, its own buffer_size, not the {buffer_size} of the method")
            self.constructor_arguments["buffer_size"] = size
        self.hparams["buffer_size"] = size
        return size

    @property
    def hparams_initial(self) -> AttributeDict:
        """What loggers receive: class and arguments of method, backbone, distiller and data, and the seed.

        Checkpoints contain :attr:`hparams` instead.
        """
        data = getattr(self.trainer, "datamodule", None) if has_trainer(self) else None
        flat = {name.removeprefix("method."): value for name, value in named("method", self).items()}
        if isinstance(data, TaskSequence):
            flat |= {**named("data", data), "data.num_tasks": data.num_tasks}  # task_sizes or domains may override it
        return AttributeDict({**flat, "buffer_size": self.buffer_size, "seed": self.streams.seed})

    @property
    def stored_samples(self) -> Memory | ExemplarSet | None:
        """The memory or exemplars, if the method has any."""
        return self.memory if self.memory_draws else None

    def current_loss(self, current: Samples) -> ReplayLoss:
        """The loss on the incoming batch: the whole loss of a step without replay."""
        logits = self.logits_of(current)
        return ReplayLoss(cross_entropy(logits, current), logits)

    @abstractmethod
    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss of one step. All images are augmented and normalised.

        Args:
            current: The incoming batch.
            *memory: ``memory_draws`` draws from memory, none of them empty.
        """

    def after_step(self) -> None:
        """Hook after each optimizer step."""

    def training_step(self, batch: Samples, batch_index: int) -> dict[str, Tensor]:
        """Take ``replay_steps`` optimizer steps; returns loss and logits of the last for the callbacks."""
        self.catch_up_schedulers()
        for _ in range(self.replay_steps):
            value, loss = self._step(batch)
        if is_logged(self.trainer):  # not in each step: log() takes half a millisecond
            self.guard.check_losses(self)
            # on the host, since Lightning reads progress-bar values after every step
            self.log("train/loss", value.cpu(), prog_bar=True)
        self.step_schedulers()
        return {"loss": value, "logits": loss.current_logits.detach()}

    def _step(self, batch: Samples) -> tuple[Tensor, ReplayLoss]:
        """Augment, draw memory, take one optimizer step and update the distiller."""
        current = self.augment(batch)
        if self.distiller is not None:
            self.distiller.before_step(self, current)
        memory = self.retrieve(current) if self.tasks_seen >= self.replay_from_task else []
        self.is_replaying = bool(memory)
        loss = self.loss(current, *memory) if memory else self.current_loss(current)
        check_returned(f"loss of {type(self).__name__}", loss, ReplayLoss)
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

    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """As in the base class, adapted by the distiller if it does so."""
        return self.adapted(super().logits_of(samples, is_extra))

    def adapted(self, logits: Tensor) -> Tensor:
        """Logits of the network as the loss takes them; :meth:`logits_of` does this already."""
        return logits if self.distiller is None else self.distiller.adapted(logits, self)

    def augment(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """The samples with augmented and normalised images, and the raw ones beside; features stay as they are."""
        if is_features(samples.images):
            images = self.normalised(samples.images)
            return replace(samples, images=images, raw=samples.images, criterion=self.criterion)
        assert self.transform is not None
        generator = self.streams["augment"] if generator is None else generator
        number, raw = samples.total, samples.images
        images = raw if self.rand_augment is None else self.rand_augment(raw, generator, number)
        images = self.transform(images, generator, number)
        return replace(samples, images=images.to(self.dtype), raw=raw, criterion=self.criterion)

    def plain_view(self, samples: Samples) -> Samples:
        """Augmented samples without their augmentation, for losses on a second view."""
        assert samples.raw is not None
        return replace(samples, images=self.normalised(samples.raw))

    def retrieve(self, current: Samples) -> list[Samples]:
        """The replayed samples of a step: ``memory_draws`` draws, none of them empty.

        Override to select samples by the incoming batch, as MIR does.

        Args:
            current: The incoming batch, augmented.
        """
        draws = [self.draw_memory() for _ in range(self.memory_draws)]
        return [draw for draw in draws if draw is not None]

    def draw_memory(
        self, tasks: Iterable[int] | None = None, generator: torch.Generator | None = None, size: int | None = None
    ) -> Samples | None:
        """An augmented draw from memory; ``None`` if no sample is eligible.

        Args:
            tasks: Draw only from these tasks; :attr:`old_tasks` gives the old memory.
            generator: Stream for an additional draw, which then does not shift the method's own draws.
            size: Samples over all ranks; by default ``replay_batch_size``.
        """
        slots = self.memory.draw(self.replay_batch_size if size is None else size, tasks, generator)
        return self.stored(slots, generator) if len(slots) else None

    def stored(self, slots: Tensor, generator: torch.Generator | None = None) -> Samples:
        """This rank's share of the samples in these slots of the memory, augmented."""
        share = replace(self.memory[local_share(slots)], global_size=len(slots))
        return self.augment(share, generator)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs, also of the distiller."""
        super().grow(num_classes)
        self.hparams["num_classes"] = num_classes
        if self.distiller is not None:
            self.distiller.grow(num_classes)

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks that the method needs and the user has not given. Lightning calls this hook first."""
        read_safely(self.trainer)
        if self.trainer.state.fn == "fit":
            check_trainer(self.trainer)
            if self.lost_in_rounding:
                check_precision(self.trainer, type(self).__name__, self.lost_in_rounding)
        needed: list[Callback] = [Forgetting(), RandomState(), LoggedCurves()]
        if self.memory_draws:
            needed.insert(0, ReservoirSampling())
        if self.distiller is not None:
            needed.append(DistillNetSnapshot())
        present = self.trainer.callbacks  # type: ignore[attr-defined]
        missing = [callback for callback in needed if not any(isinstance(p, type(callback)) for p in present)]
        return [self.guard, *missing]

    def setup(self, stage: str) -> None:
        """For a fit, clear the memory."""
        super().setup(stage)
        if stage != "fit":
            return
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
        # the memory first, so that what others save or measure after a batch has it
        callbacks.sort(key=lambda one: not isinstance(one, ReservoirSampling))
        self.memory.reset(self.buffer_size, seed=self.streams["memory"].initial_seed())
        if self.distiller is not None:
            self.distiller.begin_fit(self)

    def on_fit_start(self) -> None:
        """Compute frozen features; refuse combinations with the distiller that do not work."""
        super().on_fit_start()
        if isinstance(self.criterion, nn.Module):
            self.criterion.to(self.device)
        serve_features(self)
        check_start(self)
        if self.distiller is not None:
            self.distiller.check(self)
            if self.old_memory_weight:
                both = f"old_memory_weight = {self.old_memory_weight} beside {type(self.distiller).__name__}"
                note(f"{both}: both draw old memory, the one with hard labels")

    def _check_training_state(self, checkpoint: dict[str, Any]) -> None:
        needed = (Forgetting, RandomState, ReservoirSampling)
        check_resumable(checkpoint, self.trainer, self.sequence, needed)

    def _run_task_begin(self, task: int) -> None:
        if self.distiller is not None:
            self.distiller.begin_task(self.is_seen_class)
        super()._run_task_begin(task)
