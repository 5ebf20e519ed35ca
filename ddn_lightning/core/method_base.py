"""A network with its memory: what the formulas of a method are written with, and what remains after training."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Self

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.parsing import AttributeDict
from torch import Tensor, nn
from torch.optim import Optimizer

from ddn_lightning.callbacks.divergence_guard import DivergenceGuard
from ddn_lightning.checkpoint.checks import check_samples
from ddn_lightning.checkpoint.construction import Constructed
from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.checkpoint.parts import MEMORY, STREAMS, Part
from ddn_lightning.checkpoint.record import BATCH_NORM, BUFFER_SIZE, PROGRESS
from ddn_lightning.core.batch_norm import BatchNormStatistics, hold_frozen, obstacle_to_calibration
from ddn_lightning.core.checkpointing import Restored
from ddn_lightning.core.growth import grow_head
from ddn_lightning.core.optimization import TaskOptimizer
from ddn_lightning.data.data_record import DataRecord
from ddn_lightning.data.image_transform import Given, ImageTransform
from ddn_lightning.data.progress import Progress
from ddn_lightning.data.rand_augment import RandAugment
from ddn_lightning.data.task_sequence import TaskSequence, logged_arguments
from ddn_lightning.deploy.export import export
from ddn_lightning.deploy.load import checkpoint_of, load_method
from ddn_lightning.deploy.predict import Images, Predictions, predict, raw_batch
from ddn_lightning.deploy.pretrained import save_pretrained
from ddn_lightning.distill.label_distiller import LabelDistiller
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.distill.term import Term, TermState
from ddn_lightning.distributed import gather_shares, local_share
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.lightning_internals import has_trainer
from ddn_lightning.memory.exemplar_set import ExemplarSet
from ddn_lightning.memory.memory import Memory, StoredMemory
from ddn_lightning.networks.backbone import Backbone, Classifier, CompileMode, compiled_in_place, widened
from ddn_lightning.networks.batch_statistics import Buffers
from ddn_lightning.networks.frozen_features import is_features, stored_form
from ddn_lightning.networks.gradients import evaluating, gradient_of_sum
from ddn_lightning.networks.weight_average import WeightAverage
from ddn_lightning.random_streams import RandomStreams
from ddn_lightning.samples import Criterion, Samples, cross_entropy


class MethodBase(LightningModule, Constructed, ABC):
    """What a method's loss calls: views of samples, draws from memory, logits and features; and predictions.

    :class:`ReplayMethod` trains it.

    Args:
        backbone: Network from images to features, whose size is its ``feature_dim``. The head is added to it.
        num_classes: Number of outputs.
        mask_unseen: Whether to predict only classes seen so far.
        transform: Augmentation and normalisation, or an augmentation alone; by default the data module's.
        compile: Whether to compile the backbone, or the mode of ``torch.compile``.
        evaluate_average: Decay of the :class:`WeightAverage` that predicts in place of the network; 0 for none.
    """

    facts: ClassVar[Facts]
    memory_draws: ClassVar[int] = 1  # independent draws per step; 0 for methods that do not replay
    replay_from_task: ClassVar[int] = 1  # first task, counted from 1, in which memory is replayed
    stores_logits: ClassVar[bool] = False  # whether the memory stores logits with its samples
    rehearses_labels: ClassVar[bool] = True  # in its loss, where a distiller can soften them
    memory_class: ClassVar[type] = Memory  # that the method needs
    needs_disjoint_classes: ClassVar[str] = ""  # why a class must come in a single task, if it must
    lost_in_rounding: ClassVar[str] = ""  # what weights in half precision would lose, if anything
    cannot_average: ClassVar[str] = ""  # why no average of its weights can predict, if none can
    cannot_grow: ClassVar[str] = ""  # why the method cannot continue after its sequence, if it cannot

    memory: Memory
    distiller: LabelDistiller | None
    replay_batch_size: int
    criterion: Criterion | None
    rand_augment: RandAugment | None
    terms: tuple[Term, ...]
    batch_norm: BatchNormStatistics
    optimization: TaskOptimizer
    progress: Progress
    guard: DivergenceGuard
    resumed: Restored | None
    streams: RandomStreams
    buffer_size: int
    task_classes: list[list[int]] | None = None  # of each task
    class_names: tuple[str, ...] | None = None  # of the data that it was trained on, if they have names
    image_shape: tuple[int, ...] | None = None  # (channels, height, width)
    loaded_from: Path | None = None  # the checkpoint
    _modes: Mapping[str, bool] = MappingProxyType({})  # whether each module is in training mode in a fit

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        mask_unseen: bool = False,
        transform: Given = None,
        compile: bool | CompileMode = False,  # noqa: A002  # torch's name
        evaluate_average: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes)
        backbone = self.constructor_arguments["backbone"] = compiled_in_place(backbone, compile)
        feature_dim = getattr(backbone, "feature_dim", None)
        if not isinstance(feature_dim, int):
            raise ConfigurationError(
                f"backbone must have an attribute feature_dim, the size of its output, but {type(backbone).__name__} "
                f"has {feature_dim!r}"
            )
        self.num_classes = num_classes
        self.mask_unseen = mask_unseen
        self.transform = transform if isinstance(transform, ImageTransform) else None
        self.augmentation = (None if self.transform else transform,)  # in a tuple: a module is no part of the network
        self.backbone = backbone
        self.head = self.build_head(feature_dim)
        if evaluate_average and self.cannot_average:
            raise ConfigurationError(f"{type(self).__name__} cannot take evaluate_average: {self.cannot_average}")
        self.average = WeightAverage(self.network, evaluate_average) if evaluate_average else None
        self.is_seen_class: Tensor
        self.register_buffer("is_seen_class", torch.zeros(num_classes, dtype=torch.bool))

    def build_head(self, feature_dim: int) -> nn.Module:
        """The layer from features to one logit per class."""
        return nn.Linear(feature_dim, self.num_classes)

    @property
    def has_sequence(self) -> bool:
        """Whether the Trainer's data are tasks, and not a user's own loaders, which can be evaluated only."""
        return isinstance(getattr(self.trainer, "datamodule", None), TaskSequence)

    @property
    def network(self) -> nn.Module:
        """Backbone and head as one module."""
        return Classifier(self.backbone, self.head)

    @property
    def predicting_network(self) -> nn.Module:
        """The network that predicts: the average, if there is one."""
        return self.network if self.average is None else self.average.network

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes) of normalised images; :meth:`predict` takes raw ones.

        In evaluation mode they are those of the average, if there is one.
        """
        if images.dtype == torch.uint8:
            raise ConfigurationError(
                "a call of the method takes normalised images, got uint8: call method.predict(images), or "
                "method(method.normalised(images)) for logits"
            )
        if self.average is not None and not self.training:
            logits: Tensor = self.average(images)
            return logits
        return widened(self.head(self.backbone(images)))

    def normalised(self, images: Tensor) -> Tensor:
        """Stored images as network inputs, not augmented; features are only moved and converted."""
        if is_features(images):
            return images.to(self.device).to(self.dtype)
        assert self.transform is not None
        return self.transform(images.to(self.device)).to(self.dtype)

    def class_scores(self, images: Tensor) -> Tensor:
        """The scores (batch, num_classes) whose maximum is the prediction."""
        return self.masked(self(images))

    def masked(self, scores: Tensor) -> Tensor:
        """The scores with unseen classes masked, if ``mask_unseen``."""
        return scores.masked_fill(~self.is_seen_class, torch.finfo(scores.dtype).min) if self.mask_unseen else scores

    def probabilities(self, images: Tensor) -> Tensor:
        """The probability of each class (batch, num_classes), for stored images; call it in evaluation mode."""
        return self.class_scores(self.normalised(images)).float().softmax(dim=1)

    @classmethod
    def takes_distiller(cls) -> bool:
        """Whether there are labels of replayed samples to soften."""
        return bool(cls.memory_draws) and cls.rehearses_labels

    # -- what a paper's method implements or overrides

    @abstractmethod
    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss of one step. All images are augmented and normalised.

        Args:
            current: The incoming batch.
            *memory: ``memory_draws`` draws from memory, none of them empty.
        """

    def current_loss(self, current: Samples) -> ReplayLoss:
        """The loss on the incoming batch: the whole loss of a step without replay."""
        logits = self.logits_of(current)
        return ReplayLoss(cross_entropy(logits, current), logits)

    def retrieve(self, current: Samples) -> list[Samples]:
        """The replayed samples of a step: ``memory_draws`` draws, none of them empty.

        Override to select samples by the incoming batch, which is augmented, as MIR does.
        """
        draws = [self.draw_memory() for _ in range(self.memory_draws)]
        return [draw for draw in draws if draw is not None]

    def gradients(self, loss: ReplayLoss, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of the loss over all ranks, for the optimizer step.

        Override to step in another direction, as A-GEM does, with :meth:`gradient_of` for single terms.
        """
        return self.gradient_of([lambda: loss.total, *loss.deferred_terms], parameters)

    def after_step(self) -> None:
        """Hook after each optimizer step."""

    def begin_task(self) -> None:
        """Hook before a task's first batch. ``self.task`` is the new task."""

    def end_task(self) -> None:
        """Hook after a task's last batch and before its evaluation, with gradients enabled.

        Its effect counts once per task. A killed run resumes from its last checkpoint and may run it again, from the
        same state; files written here may be written twice. The network computes in single precision here, unless
        called in ``self.trainer.precision_plugin.train_step_context()``.
        """

    def before_evaluation(self) -> None:
        """Hook before each evaluation during training."""

    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """The training samples of an epoch: by default the data of its task."""
        return sequence.training_samples(epoch // sequence.epochs_per_task)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs; known ones stay. A method with parameters for each class extends this."""
        self.num_classes = self.constructor_arguments["num_classes"] = self.hparams["num_classes"] = num_classes
        grow_head(self.head, self)
        if self.average is not None:
            grow_head(self.average.network.get_submodule("head"), self)
        self.is_seen_class = resized(self.is_seen_class, (num_classes,))
        for term in self.terms:
            term.grow(num_classes)

    def resize(self, buffer_size: int) -> None:
        """Change the size of the memory before a fit. A method with something for each slot extends this."""
        self.buffer_size = self.hparams["buffer_size"] = buffer_size
        self.memory.reset(buffer_size, seed=0)
        if self.distiller is not None:
            self.distiller.resize(buffer_size)

    # -- samples

    def augment(self, samples: Samples, generator: torch.Generator | None = None) -> Samples:
        """Augment and normalise images, keep the originals in ``raw``; features are not augmented."""
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

    @property
    def stored_samples(self) -> Memory | ExemplarSet | None:
        """The memory or exemplars, if the method has any."""
        return self.memory if self.memory_draws else None

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

    # -- the optimizers

    def configure_optimizers(self) -> Any:
        """The optimizers of the classifier and of the terms of the loss.

        An override is used as it is: ``lr``, ``momentum`` and ``weight_decay`` are not applied to its optimizer, and
        its schedulers step after the epochs or steps that it asks for, without a restart at each task.
        """
        return self.optimization.build_all(self)

    def gradient_of(
        self, terms: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor], retain_graph: bool = False
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Value and gradient of a sum of terms over all ranks; ``None`` for parameters that no term depends on.

        With ``retain_graph`` other terms of the same loss can be differentiated afterwards.
        """
        return gradient_of_sum(terms, parameters, retain_graph)

    def note_loss(self, value: Tensor, name: str = "loss", **learning_rates: float) -> None:
        """Queue a loss for the next check of the guard, which stops training on NaN or infinity.

        Args:
            value: The loss over all ranks.
            name: Its name in the error message.
            **learning_rates: Options to lower if it is not finite; by default ``lr``.
        """
        self.guard.note(value, name, (self.task, self.trainer.global_step), learning_rates or {"lr": self.current_lr})
        if self.guard.is_full:
            self.guard.check_losses(self)

    @property
    def lr(self) -> float:
        """The learning rate of SGD that was given."""
        return self.optimization.lr

    @property
    def current_lr(self) -> float:
        """The learning rate of the current step."""
        if self.has_own_optimizer:
            lr: float = self.classifier_optimizer.param_groups[0]["lr"]
            return lr
        # the clock takes as long as all the rest
        return self.optimization.sgd_lr(self.sequence.clock.epoch_in_task if self.optimization.lr_milestones else 0)

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the user has given an optimizer or a scheduler, by argument or by ``configure_optimizers``."""
        return not self.optimization.is_sgd or self.overrides_optimizers

    @property
    def overrides_optimizers(self) -> bool:
        """Whether the user has overridden ``configure_optimizers``."""
        # not Lightning's is_overridden, which takes ten times as long: this is read eight times per step
        return getattr(self.configure_optimizers, "__func__", None) is not MethodBase.configure_optimizers

    @property
    def classifier_optimizer(self) -> Optimizer:
        """The classifier's optimizer, whose steps are Lightning's ``global_step``."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, Optimizer)
        return optimizer

    @property
    def moved_parameters(self) -> list[Tensor]:
        """The parameters that a step moves: those of the classifier's optimizer that require a gradient."""
        groups = self.classifier_optimizer.param_groups if has_trainer(self) else [{"params": self.parameters()}]
        return [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]

    # -- outputs of the network

    def logits_of(self, samples: Samples, is_extra: bool = False) -> Tensor:
        """Logits of a batch in the loss, adapted by the terms of the loss.

        Args:
            samples: The incoming batch or a draw from memory, augmented.
            is_extra: Whether it is a draw in addition to the method's own.
        """
        with self.tracking(samples, is_extra):
            logits: Tensor = self(samples.images)
        return self.adapted(logits)

    def adapted(self, logits: Tensor) -> Tensor:
        """Logits of the network as the loss takes them; :meth:`logits_of` does this already."""
        method: Any = self
        for term in self.terms:
            logits = term.adapted(logits, method)
        return logits

    def tracking(self, samples: Samples, is_extra: bool = False) -> AbstractContextManager[None]:
        """Within it, forward passes of a batch update running statistics where ``running_statistics`` says so."""
        return self.batch_norm.tracking(self, samples, is_extra)

    def features_of(self, samples: Samples) -> Tensor:
        """Features of samples in evaluation mode, not augmented."""
        return self.outputs_of(self.backbone, samples)

    def outputs_of(self, module: nn.Module, samples: Samples) -> Tensor:
        """Outputs of a module for samples in evaluation mode, not augmented; computed in shares and gathered."""
        parts = torch.split(local_share(samples.images), self.sequence.eval_batch_size)
        with evaluating(module):
            outputs = [module(self.normalised(part)) for part in parts]
        return gather_shares(torch.cat(outputs), len(samples))

    # -- calibrated statistics of BatchNorm

    @property
    def obstacle_to_calibration(self) -> str | None:
        """Why BatchNorm statistics cannot be calibrated, or ``None`` if they can."""
        obstacle = obstacle_to_calibration(self.backbone, self.head)
        return obstacle or (f"{type(self).__name__} keeps no samples" if self.stored_samples is None else None)

    def calibrated_buffers(self, batch_size: int, class_balanced: bool = False) -> Buffers:
        """The buffers that change when statistics are calibrated on the stored samples; empty for fewer than two.

        Draws no random numbers; the result is the same on every rank.

        Args:
            batch_size: Maximum number of samples per forward pass.
            class_balanced: Whether all classes have equal weight.
        """
        return self.batch_norm.calibrate(self, batch_size, class_balanced)

    def calibration_slots(self) -> Tensor:
        """Slots of the stored samples to calibrate on, on the host: by default all."""
        return torch.empty(0, dtype=torch.long) if self.stored_samples is None else self.stored_samples.slots

    @property
    def running_buffers(self) -> Buffers | None:
        """The running statistics, while the calibrated ones are in use."""
        return self.batch_norm.running

    def calibrated(self, buffers: Buffers) -> AbstractContextManager[None]:
        """Use calibrated statistics within the context."""
        return self.batch_norm.calibrated(self, buffers)

    def uncalibrated(self) -> AbstractContextManager[Buffers]:
        """Use running statistics within the context; yields the calibrated ones that they replace."""
        return self.batch_norm.uncalibrated(self)

    @property
    def backbones(self) -> list[nn.Module]:
        """The backbone, and copies of it that are in training mode with the method."""
        return (
            [self.backbone] if self.average is None else [self.backbone, self.average.network.get_submodule("backbone")]
        )

    # -- the run

    @property
    def parts(self) -> dict[str, Part]:
        """What a checkpoint has besides weights, progress and BatchNorm statistics, in the order of a resume."""
        memory = {MEMORY: StoredMemory(self.memory, self._check_stored)} if self.memory_draws else {}
        terms = {type(term).__name__: TermState(term, self.device) for term in self.terms}
        return {STREAMS: self.streams, **memory, **terms}

    def _check_stored(self, stored: Samples) -> None:
        form = stored_form(self.backbone, self.sequence.image_shape)
        check_samples(MEMORY, stored, form, self.sequence.may_come, self.stores_logits)

    @property
    def sequence(self) -> TaskSequence:
        """The data module."""
        sequence = getattr(self.trainer, "datamodule", None)
        if not isinstance(sequence, TaskSequence):
            raise ConfigurationError(
                f"{type(self).__name__} needs a TaskSequence such as SplitDigits for its datamodule, got {sequence!r}"
            )
        return sequence

    @property
    def task(self) -> int:
        """The task being trained, counted from 0; -1 before the first."""
        return self.progress.task

    @property
    def tasks_seen(self) -> int:
        """Number of tasks begun."""
        return self.progress.tasks_seen

    @property
    def old_tasks(self) -> range:
        """The tasks before the current one."""
        return range(self.task)

    @property
    def tasks_finished(self) -> int:
        """Number of tasks whose :meth:`end_task` has run."""
        return self.progress.tasks_finished

    @property
    def accuracy_matrix(self) -> Tensor:
        """Accuracy in percent on each task (column) after each task (row), among all classes."""
        return self._measured("accuracy_matrix")

    @property
    def task_il_matrix(self) -> Tensor:
        """As :attr:`accuracy_matrix`, among the classes of the sample's task."""
        return self._measured("task_il_matrix")

    @property
    def calibrated_accuracy_matrix(self) -> Tensor:
        """As :attr:`accuracy_matrix`, measured with calibrated statistics."""
        return self._measured("calibrated_accuracy_matrix")

    @property
    def test_accuracy(self) -> dict[str, list[float | None]]:
        """Accuracy on the test images of each task after the last one, by kind; empty until they are opened."""
        return self.progress.test_accuracy

    def _measured(self, name: str) -> Tensor:
        dtype: Any = self.dtype
        return self.progress.matrices[name].to(self.device, torch.promote_types(dtype, torch.float32))

    @property
    def hparams_initial(self) -> AttributeDict:
        """What loggers receive; checkpoints contain :attr:`hparams` instead."""
        data = getattr(self.trainer, "datamodule", None) if has_trainer(self) else None
        return AttributeDict(
            {**logged_arguments(self, data), "buffer_size": self.buffer_size, "seed": self.streams.seed}
        )

    def train(self, mode: bool = True) -> Self:
        """Set the mode, except for the BatchNorm of a frozen backbone, which stays in evaluation mode."""
        super().train(mode)
        hold_frozen(self.backbones)
        return self

    def on_validation_model_eval(self) -> None:
        """Find the layers that the user keeps in evaluation mode, before Lightning switches all of them."""
        self.batch_norm.find_frozen(self)
        super().on_validation_model_eval()

    def on_test_model_eval(self) -> None:
        """As before a validation."""
        self.batch_norm.find_frozen(self)
        super().on_test_model_eval()

    def get_extra_state(self) -> dict[str, Any]:
        """Progress and statistics, as part of the weights: Lightning returns only these from other processes."""
        size = {} if self.hparams.get("buffer_bytes") is None else {BUFFER_SIZE: self.buffer_size}
        return {PROGRESS: self.progress.state_dict(), BATCH_NORM: self.batch_norm.state_dict(), **size}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore progress and statistics."""
        self.progress.load_state_dict(state[PROGRESS])
        self.batch_norm.load_state_dict(state[BATCH_NORM])

    @property
    def is_growing(self) -> bool:
        """Whether the fit continues from a checkpoint of fewer tasks."""
        return self.resumed is not None and self.resumed.is_growing

    # -- after training

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each class; its number where the data has no names, and for outputs without a class."""
        known = self.class_names or ()
        return (*known, *map(str, range(len(known), self.num_classes)))

    def record_data_info(self, data: DataRecord) -> None:
        """Note what classes are called and what images look like, for predictions without the data."""
        self.class_names = data.class_names
        facts = data.test or data.train
        self.image_shape = None if facts is None else tuple(facts.image_shape)

    def predict(self, images: Images, batch_size: int = 256) -> Predictions:
        """Class names and probabilities for images from anywhere, as :func:`~ddn_lightning.deploy.predict.predict`.

        Example:
            >>> method = ddn_lightning.load("runs/mine")  # doctest: +SKIP
            >>> method.predict("photos/").names  # doctest: +SKIP
            ['cat', 'ship']
        """
        return predict(self, images, batch_size)

    def export(self, path: str | Path) -> float:
        """Write a ``.onnx`` or ``.pt2`` file that predicts without this package, and return the largest difference."""
        return export(self, path)

    def save_pretrained(self, folder: str | Path, command: str = "") -> None:
        """Write a folder for a model hub: ``model.safetensors``, ``config.json`` and a model card, without the memory.

        :func:`ddn_lightning.load` reads it, and ``huggingface_hub.upload_folder`` uploads it.

        Args:
            folder: A new or empty folder.
            command: The command that trained the method, for the model card.
        """
        save_pretrained(checkpoint_of(self), Path(folder), command)

    def validation_step(self, batch: Samples | Sequence[Tensor], batch_index: int, dataloader_idx: int = 0) -> Tensor:
        """Scores of a test batch, for the callbacks to measure; on a user's raw images and labels, log the accuracy."""
        scores = self.class_scores(self.normalised(raw_batch(batch)))
        if not isinstance(batch, Samples):
            hits = (scores.argmax(dim=1) == batch[1]).float()
            self.log("accuracy", 100 * hits.mean(), batch_size=len(hits), sync_dist=True)
        return scores

    def test_step(self, batch: Samples | Sequence[Tensor], batch_index: int, dataloader_idx: int = 0) -> Tensor:
        """Scores of a test batch, as in :meth:`validation_step`."""
        return self.validation_step(batch, batch_index)

    def predict_step(
        self, batch: Samples | Tensor | Sequence[Tensor], batch_index: int, dataloader_idx: int = 0
    ) -> Tensor:
        """The predicted classes of a batch of raw ``uint8`` images, alone or with labels."""
        return self.class_scores(self.normalised(raw_batch(batch))).argmax(dim=1)

    def remember_modes(self) -> None:
        """Note which modules are in training mode, for :meth:`return_to_training`."""
        self._modes = {name: module.training for name, module in self.named_modules()}

    def return_to_training(self) -> None:
        """Leave evaluation mode, except for modules that were in it before."""
        self.train()
        for name, module in self.named_modules():
            module.training = self._modes.get(name, module.training)

    def to_onnx(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse, and say how to export the network instead."""
        raise ConfigurationError(
            f"{type(self).__name__} is no network as a whole: use method.export('model.onnx'), or 'model.pt2'"
        )

    to_torchscript = to_onnx

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file or a folder; Lightning also takes an open file
        cls,
        checkpoint_path: str | Path,
        map_location: Any = None,
        *,
        strict: bool | None = None,
        weights_only: bool | None = True,
        classes: Sequence[type] = (),
        **kwargs: Any,
    ) -> Self:
        """A trained method, as Lightning has it, without any argument by hand.

        Args:
            checkpoint_path: A checkpoint, or the folder of a run.
            map_location: Device.
            strict: Whether all weights must be there, and no others.
            weights_only: Nothing in a checkpoint is executed, whatever this says.
            classes: Classes that the checkpoint may name, see :func:`load`.
            **kwargs: Arguments of the method that override the checkpoint's, such as ``backbone``.
        """
        method = load_method(cls, checkpoint_path, strict is not False, classes, **kwargs)
        return method if map_location is None else method.to(map_location)
