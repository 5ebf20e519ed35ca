"""BiC: distillation, and a correction of the bias towards new classes with two parameters."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ddn_lightning.callbacks.task_progress_bar import track
from ddn_lightning.checkpoint.growth import resized
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.errors import ConfigurationError, check_not_negative, check_positive
from ddn_lightning.memory.exemplar_set import rank_in_class
from ddn_lightning.methods.exemplar_method import ExemplarMethod
from ddn_lightning.random_streams import generator_for
from ddn_lightning.samples import Samples, concatenate, cross_entropy

EXEMPLARS, CORRECTION = "exemplars", "bias correction"


class BiC(ExemplarMethod):
    """BiC (Wu et al., CVPR 2019, https://arxiv.org/abs/1905.13260).

    From the second task on, a few samples of each class are held out from training. The network learns the labels and,
    for old classes, the corrected outputs of the previous task's network. After training, a scale and a shift for the
    outputs of the new classes are learned on the held-out samples. Exemplars are chosen at random. Unlike
    Experience Replay it trains on them as data; needs task boundaries and tasks without common classes, and stores the
    previous network.

    Args:
        held_out_fraction: Fraction of each old class's exemplars to hold out, at least one of two or more; the same
            number is held out of each new class. Balanced over classes as in the paper.
        distillation_weight: Weight of distillation, where labels have the rest: ``paper`` for the fraction of old
            classes, ``lineage`` for one over the number of tasks, as in the code that the DDN paper builds on.
        temperature: Temperature of the distillation.
        correction_epochs: Epochs over the held-out samples to learn the correction.
        correction_lr: Learning rate of Adam for the correction. With Mammoth's 0.001 each parameter would change by at
            most a quarter in 250 epochs, since the held-out samples of a small memory are a single batch.
        **kwargs: Arguments of :class:`ExemplarMethod`.
    """

    facts = Facts(
        key="bic",
        title="BiC",
        reference="[Wu et al. 2019](https://arxiv.org/abs/1905.13260)",
        stores="the last network, 2 numbers",
        cost="as iCaRL; bias correction at a task's end",
    )

    correction_scale: Tensor  # (num_classes), 1 except for the classes of the last task
    correction_shift: Tensor  # (num_classes)

    def __init__(
        self,
        *args: Any,
        held_out_fraction: float = 0.1,
        distillation_weight: Literal["paper", "lineage"] = "paper",
        temperature: float = 2.0,
        correction_epochs: int = 250,
        correction_lr: float = 1e-2,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not 0 < held_out_fraction < 1:
            raise ConfigurationError(f"held_out_fraction must be above 0 and below 1, got {held_out_fraction}")
        check_positive(temperature=temperature, correction_lr=correction_lr)
        check_not_negative(correction_epochs=correction_epochs)
        self.held_out_fraction = held_out_fraction
        self.distillation_weight = distillation_weight
        self.temperature = temperature
        self.correction_epochs = correction_epochs
        self.correction_lr = correction_lr
        self.register_buffer("correction_scale", torch.ones(self.num_classes))
        self.register_buffer("correction_shift", torch.zeros(self.num_classes))

    def grow(self, num_classes: int) -> None:
        """Change the number of outputs; new ones are not corrected."""
        super().grow(num_classes)
        self.correction_scale = resized(self.correction_scale, (num_classes,), fill=1)
        self.correction_shift = resized(self.correction_shift, (num_classes,))

    def current_loss(self, current: Samples) -> ReplayLoss:
        """Cross-entropy with the labels and, over old classes, with the softened outputs of the previous network."""
        logits = self(current.images)
        loss = cross_entropy(self.masked(logits), current)
        if self.is_distilling:
            weight = self._distillation_share
            loss = (1 - weight) * loss + weight * self.temperature**2 * self._distillation(logits, current)
        return ReplayLoss(loss, logits)

    @property
    def _distillation_share(self) -> Tensor | float:
        if self.distillation_weight == "lineage":
            return 1 / self.tasks_seen
        return self.is_old_class.sum() / self.is_seen_class.sum()

    def _distillation(self, logits: Tensor, current: Samples) -> Tensor:
        def among_old(outputs: Tensor) -> Tensor:
            return outputs.masked_fill(~self.is_old_class, torch.finfo(outputs.dtype).min) / self.temperature

        targets = among_old(self.corrected(self.old_outputs(current.images))).softmax(dim=1)
        log_probabilities = among_old(logits).log_softmax(dim=1).masked_fill(~self.is_old_class, 0)
        return current.mean(-(targets * log_probabilities).sum(dim=1))

    def corrected(self, logits: Tensor) -> Tensor:
        """Outputs without the bias towards the classes of the last completed task."""
        return self.correction_scale * logits + self.correction_shift

    def class_scores(self, images: Tensor) -> Tensor:
        """Corrected outputs; uncorrected within a task, before its correction is learned."""
        logits = self(images)
        return self.masked(self.corrected(logits) if self.is_between_tasks else logits)

    def stream(self, sequence: TaskSequence, epoch: int) -> Samples:
        """The task's data and the exemplars, without those held out."""
        samples = super().stream(sequence, epoch)
        return samples[~self._is_held_out(samples, epoch // sequence.epochs_per_task)]

    def end_task(self) -> None:
        """Learn the correction, choose exemplars and keep the network."""
        if self.is_distilling:
            self._learn_correction()
        super().end_task()

    def ranked(self, samples: Samples, number: int) -> Samples:
        """All samples in random order."""
        return samples[torch.randperm(len(samples), generator=self.streams[EXEMPLARS])]

    def _is_held_out(self, samples: Samples, task: int) -> Tensor:
        """Equally many random samples of each class, the same throughout a task; each class keeps at least one."""
        if not len(self.exemplars):
            return torch.zeros(len(samples), dtype=torch.bool)
        share = int(self.exemplars.samples.labels.bincount().max())
        number = min(max(round(self.held_out_fraction * share), 1), share - 1)
        order = torch.randperm(len(samples), generator=generator_for(self.streams.seed, f"held out of task {task}"))
        is_held_out = torch.zeros(len(samples), dtype=torch.bool)
        labels = samples.labels[order]
        numbers = (labels.bincount() - 1).clamp_max(number)  # of each class
        is_held_out[order[rank_in_class(labels) < numbers[labels]]] = True
        return is_held_out

    def _learn_correction(self) -> None:
        """Fit scale and shift of the new classes; all ranks compute the same from all outputs."""
        self.correction_scale = torch.ones_like(self.correction_scale)
        self.correction_shift = torch.zeros_like(self.correction_shift)
        samples = concatenate([self.sequence.training_samples(self.task), self.exemplars.samples])
        samples = samples[self._is_held_out(samples, self.task)]
        if not len(samples):
            return
        logits = self.masked(self.outputs_of(self.network, samples))
        is_new = self.is_seen_class & ~self.is_old_class
        batches = self._batches(len(samples))
        note = partial(self.note_loss, name="the loss of the bias correction", correction_lr=self.correction_lr)
        labels = samples.labels.to(logits.device)
        learned = learn_correction(logits, labels, is_new, batches, self.correction_lr, note)
        self.correction_scale[is_new], self.correction_shift[is_new] = learned

    def _batches(self, size: int) -> Iterator[Tensor]:
        for _ in track(self.trainer, self.correction_epochs, "correcting the bias"):
            order = torch.randperm(size, generator=self.streams[CORRECTION])
            yield from torch.split(order.to(self.device), self.replay_batch_size)


def learn_correction(
    logits: Tensor,
    labels: Tensor,
    is_new: Tensor,
    batches: Iterable[Tensor],
    lr: float,
    note: Callable[[Tensor], None] = lambda loss: None,
) -> Tensor:
    """Scale and shift of the new classes' outputs that minimise the cross-entropy, by Adam from 1 and 0.

    Args:
        logits: Outputs of the network (samples, num_classes).
        labels: Class of each sample.
        is_new: Classes to correct (num_classes).
        batches: Sample indices of each step.
        lr: Learning rate.
        note: Called with the loss of each step.
    """
    numbers = torch.tensor([1.0, 0.0], device=logits.device, dtype=logits.dtype, requires_grad=True)
    optimizer = torch.optim.Adam([numbers], lr)
    for batch in batches:
        outputs = torch.where(is_new, numbers[0] * logits[batch] + numbers[1], logits[batch])
        loss = functional.cross_entropy(outputs, labels[batch])
        (numbers.grad,) = torch.autograd.grad(loss, [numbers])
        note(loss)
        optimizer.step()
    return numbers.detach()
