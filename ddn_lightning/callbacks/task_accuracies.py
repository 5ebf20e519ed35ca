"""Measures any module's accuracy on each task."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from ddn_lightning.distributed import moved, take_from_first_rank
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.metrics.accuracy_matrix import AccuracyMatrix
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.samples import Samples

ScoresOf = Callable[[LightningModule, Tensor], Tensor]  # from normalised images to the score of each class


def call_module(module: LightningModule, images: Tensor) -> Tensor:
    """The scores of a module that is called with images."""
    scores: Tensor = module(images)
    return scores


def task_accuracies(
    module: LightningModule, scores_of: ScoresOf, batches: Iterable[Samples], is_class_of_task: Tensor, stage: int
) -> tuple[Tensor, Tensor]:
    """The row of the accuracy matrix and of the task-incremental one, over all ranks; ``nan`` where not measured.

    Args:
        module: The module, whose buffers become those of the first rank, the ones that a checkpoint has.
        scores_of: From the module and normalised images to the scores (batch, num_classes).
        batches: This rank's share of the test images, normalised and on the device, with the task of each.
        is_class_of_task: See :class:`AccuracyMatrix`.
        stage: The task after which is measured.
    """
    metric = AccuracyMatrix(is_class_of_task).to(module.device)
    take_from_first_rank(list(module.buffers()))
    with evaluating(module):
        for batch in batches:
            assert batch.tasks is not None
            scores = checked_scores(scores_of(module, batch.images), len(batch), is_class_of_task.shape[1])
            metric.update(stage, scores, batch.labels, moved(batch.tasks, scores.device))
    matrices, shape = metric.compute(), metric.total.shape  # torchmetrics squeezes the matrix of a single task
    return matrices["class_il"].reshape(shape)[stage], matrices["task_il"].reshape(shape)[stage]


def checked_scores(scores: object, number: int, num_classes: int) -> Tensor:
    """The scores of the sequence's classes; refuse what is not a row of at least as many for each image."""
    if isinstance(scores, Tensor) and scores.dim() == 2 and len(scores) == number and scores.shape[1] >= num_classes:
        return scores[:, :num_classes]
    found = f"a tensor of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
    raise ConfigurationError(
        f"module(images) must give a score for each image and class, ({number}, {num_classes}) or more, got {found}: "
        "give Replay scores=, a function of the module and normalised images"
    )


@contextmanager
def averaged_weights(trainer: Trainer, module: LightningModule, *batch_end: object) -> Iterator[None]:
    """Within it, the module has its averaged weights, if a callback averages them, as in Lightning's validation.

    Args:
        trainer: The Trainer.
        module: The module.
        *batch_end: Outputs, batch and index of the step just taken, which then counts in the average whatever the order
            of the callbacks; it counts once.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    averaging = [callback for callback in callbacks if isinstance(callback, WeightAveraging)]
    with torch.no_grad():
        for callback in averaging:
            callback.on_train_batch_end(trainer, module, *batch_end)  # type: ignore[arg-type]  # as Lightning gave them
            callback.on_validation_epoch_start(trainer, module)
        try:
            yield
        finally:
            for callback in averaging:
                callback.on_validation_epoch_end(trainer, module)
