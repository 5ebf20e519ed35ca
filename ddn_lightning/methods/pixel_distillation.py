"""The base class of methods that learn the pixels of their memory."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ddn_lightning.callbacks.task_progress_bar import track
from ddn_lightning.distill.hypergradient import FrozenNetwork, pixel_surrogate
from ddn_lightning.distill.learned_labels import RowAdam
from ddn_lightning.distributed import local_share
from ddn_lightning.errors import check_not_negative, check_positive
from ddn_lightning.memory.slot_buffer import SlotBuffer
from ddn_lightning.methods.er import ER
from ddn_lightning.networks.frozen_features import check_holds_images
from ddn_lightning.networks.gradients import descend, evaluating
from ddn_lightning.samples import Samples

DISTILLATION = "pixel distillation"


class PixelDistillation(ER):
    """Experience Replay whose stored images are learned at each task's end, by bi-level optimization.

    *Inner*: a virtual SGD step of the whole network, in evaluation mode, on a batch of stored images. *Outer*: the
    stepped network's loss on real data, whose gradient updates the pixels. Pixels start as the stored images and are
    rounded to grey levels at the end, so that the memory holds ``buffer_size`` images; only the learning needs a copy
    in floating point.

    The gradient scales with the learning rate of the virtual step: SGD with the published 0.01 would hardly change a
    pixel by a grey level (on Split Digits no gradient exceeds 0.04), so the outer steps are Adam's. The outer loss
    reads the task's data once more at its end, which relaxes the online setting, as the choice of exemplars does.

    Args:
        distillation_steps: Outer steps at each task's end. Each changes ``replay_batch_size`` of the images to learn,
            so more images need more steps.
        distillation_lr: Learning rate of Adam, for normalised pixels: about the change of a pixel by a step.
        **kwargs: Arguments of :class:`ER`. ``replay_batch_size`` is also the size of the inner and outer batches, and
            ``lr`` the learning rate of the virtual step.
    """

    lost_in_rounding = "gradients"
    memory: SlotBuffer
    memory_class = SlotBuffer

    def __init__(self, *args: Any, distillation_steps: int = 50, distillation_lr: float = 0.01, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_holds_images(self.backbone, type(self).__name__)
        check_not_negative(distillation_steps=distillation_steps)
        check_positive(distillation_lr=distillation_lr)
        self.distillation_steps = distillation_steps
        self.distillation_lr = distillation_lr

    @abstractmethod
    def slots_to_learn(self) -> Tensor:
        """The slots of the memory to learn."""

    @abstractmethod
    def outer_batch(self, data: Samples, stored: Samples) -> list[Samples]:
        """The batches of the outer loss, augmented.

        Args:
            data: The task's data.
            stored: The stored samples before learning.
        """

    def begin_learning(self, stored: Samples) -> list[Tensor]:
        """Create further parameters besides the pixels: a row for each slot."""
        return []

    def inner_losses(self, logits: Tensor, samples: Samples) -> Tensor:
        """The inner loss of each sample, whose ``slots`` are rows of the learned parameters."""
        return super().replay_losses(logits, samples)

    def after_learning_step(self) -> None:
        """Hook after each outer step, without gradients."""

    def end_learning(self, slots: Tensor) -> None:
        """Store the further parameters."""

    def end_task(self) -> None:
        """Learn the images in the memory."""
        assert self.transform is not None
        slots = self.slots_to_learn()
        if len(slots):
            images = self._learn(self.memory[slots])
            self.memory.overwrite_images(slots, self.transform.undo(images))
            self.end_learning(slots)

    def _learn(self, stored: Samples) -> Tensor:
        """The learned images, normalised."""
        images = self.normalised(stored.images)
        black, white = (self.normalised(torch.full_like(stored.images[:1], v)) for v in (0, 255))
        rows = images.flatten(1).requires_grad_()
        optimizer = RowAdam([rows, *self.begin_learning(stored)], self.distillation_lr)
        data = self.sequence.training_samples(self.task)
        for _ in track(self.trainer, self.distillation_steps, "distilling the memory"):
            chosen = self._choose(stored)
            share = local_share(chosen)
            labels = stored.labels[share.to(self.device)]
            inner = Samples(rows[share.to(self.device)].view(-1, *images.shape[1:]), labels, slots=share)
            inner.global_size = len(chosen)
            loss = descend(self._surrogate(inner, self.outer_batch(data, stored)), optimizer)
            rates = {"lr": self.lr, "distillation_lr": self.distillation_lr}
            self.note_loss(loss, "the loss of distilling the memory", **rates)
            with torch.no_grad():
                rows.copy_(rows.view_as(images).clamp(black, white).flatten(1))
                self.after_learning_step()
        return rows.detach().view_as(images)

    def _surrogate(self, inner: Samples, outer: list[Samples]) -> Tensor:
        def inner_loss(logits: Tensor) -> Tensor:
            return inner.mean(self.inner_losses(logits, inner))

        # eager: a compiled network cannot be differentiated twice
        with evaluating(self.network), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            network = FrozenNetwork(self.network, self.moved_parameters)
            return pixel_surrogate(network, inner, inner_loss, outer, self.lr)

    def draw_from(self, samples: Samples) -> Samples:
        """An augmented random batch for the outer loss."""
        chosen = self._choose(samples)
        share = samples[local_share(chosen)].to(self.device)
        return self.augment(replace(share, global_size=len(chosen)), self.streams[DISTILLATION])

    def _choose(self, samples: Samples) -> Tensor:
        """Random indices of the next batch, over all ranks."""
        return torch.randperm(len(samples), generator=self.streams[DISTILLATION])[: self.replay_batch_size]
