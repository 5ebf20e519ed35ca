"""Whole-buffer distillation: learn images and labels of the whole memory."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.distributed import moved
from ddn_lightning.learner import Facts
from ddn_lightning.methods.pixel_distillation import PixelDistillation
from ddn_lightning.samples import Samples


class WholeBufferDistillation(PixelDistillation):
    """The DDN paper's framework without the hypernetwork (Liao et al., ICML 2025, Eq. 4).

    At a task's end images and soft labels of the whole memory are learned such that a step on them lowers the loss on
    the task's data *and*, unlike in Mnemonics, on the stored samples of earlier tasks with their hard labels. The paper
    finds this too costly and prone to overfitting and does not measure it; here it is a comparison at small scale.

    Samples of earlier tasks are replayed with learned labels, those of the current task with hard labels. Needs task
    boundaries; stores a soft label per image.

    Args:
        **kwargs: Arguments of :class:`PixelDistillation`.
    """

    facts = Facts(
        key="whole_buffer",
        title="whole-buffer distillation",
        reference="DDN paper, Eq. 4",
        stores="soft labels (images are learned)",
        cost="none; at a task's end 50 bi-level steps",
    )

    soft_labels: Tensor  # (buffer_size, num_classes), of samples from earlier tasks

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("soft_labels", torch.zeros(self.buffer_size, self.num_classes))

    def resize(self, buffer_size: int) -> None:
        """Change the number of slots."""
        super().resize(buffer_size)
        self.soft_labels = self.soft_labels.new_zeros(buffer_size, self.num_classes)

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs; learned labels give new classes no share."""
        super().grow(num_classes)
        self.soft_labels = resized(self.soft_labels, (self.buffer_size, num_classes))

    def replay_losses(self, logits: Tensor, replayed: Samples) -> Tensor:
        """Cross-entropy with the learned labels."""
        return -(self._labels(replayed) * logits.log_softmax(dim=1)).sum(dim=1)

    def _labels(self, samples: Samples) -> Tensor:
        assert samples.slots is not None
        assert samples.tasks is not None
        is_learned = moved(samples.tasks < self.task, self.device)
        learned = self.soft_labels[moved(samples.slots, self.device)]
        return torch.where(is_learned[:, None], learned, functional.one_hot(samples.labels, self.num_classes))

    def slots_to_learn(self) -> Tensor:
        """All filled slots."""
        return self.memory.slots

    def outer_batch(self, data: Samples, stored: Samples) -> list[Samples]:
        """The task's data, and the stored samples of earlier tasks before learning."""
        assert stored.tasks is not None
        old = (stored.tasks < self.task).nonzero().squeeze(1)
        return [self.draw_from(part) for part in (data, stored[old]) if len(part)]

    def begin_learning(self, stored: Samples) -> list[Tensor]:
        """Start from the current labels."""
        self.learned_labels = self._labels(stored).clone().requires_grad_()
        return [self.learned_labels]

    def inner_losses(self, logits: Tensor, samples: Samples) -> Tensor:
        """Cross-entropy with the labels to learn."""
        assert samples.slots is not None
        labels = self.learned_labels[samples.slots.to(self.device)]
        labels = labels / labels.sum(dim=1, keepdim=True)  # sums to 1 already; projects the gradient onto distributions
        return -(labels * logits.log_softmax(dim=1)).sum(dim=1)

    def after_learning_step(self) -> None:
        """Project the labels onto distributions."""
        labels = self.learned_labels.clamp_(min=torch.finfo(self.learned_labels.dtype).tiny)
        labels /= labels.sum(dim=1, keepdim=True)

    def end_learning(self, slots: Tensor) -> None:
        """Store the labels."""
        self.soft_labels[slots.to(self.device)] = self.learned_labels.detach()
        del self.learned_labels
