"""Records the memory, its soft labels and the predictions at each task's end, for the figures."""

from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.distill.learner import Watched, method_of
from ddn_lightning.distributed import gather_shares, local_share
from ddn_lightning.networks.frozen_features import is_features
from ddn_lightning.networks.gradients import evaluating
from ddn_lightning.runs.observed import Observed, grown

MOST_LABELLED = 512  # samples whose soft labels are computed: a forward pass over a whole memory may take minutes
MOST_SHOWN = 12


class Observations(TaskCallback):
    """Records the contents of the memory, its soft labels and the predictions in :attr:`observed`.

    The soft labels are by the G that the finished task was trained with, from before the distiller's snapshot, for the
    images as they are and the network as it is tested; in training both were augmented and normalised by batch. All
    ranks record the same; the state is part of the checkpoint. The callback changes no weight and no random stream, so
    a run with it equals a run without it.

    Example:
        >>> observations = Observations()
        >>> observations.observed is None  # until a fit begins
        True
    """

    def __init__(self) -> None:
        self.observed: Observed | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset; a checkpoint is restored after this."""
        if stage == "fit":
            sequence = method_of(pl_module).sequence
            plan = sequence.train_plan
            stream = None if plan is None else plan.timeline()
            self.observed = Observed(sequence.is_class_of_task, stream=stream)

    def on_task_end(self, trainer: Trainer, method: Watched, task: int) -> None:
        """Record the memory."""
        if not method.stored_samples:
            return
        labels = method.stored_samples.labels.cpu()
        self._record_row(task, composition=labels.bincount(minlength=method.num_classes))
        if not method.sequence.stream.has_disjoint_classes:  # else the classes say it
            tasks = method.stored_samples[method.stored_samples.slots].tasks
            if tasks is not None:  # a user's memory may not keep them
                self._record_row(task, memory_tasks=tasks.bincount(minlength=method.sequence.num_tasks))
        places = _spread(len(labels), MOST_LABELLED)
        slots = method.stored_samples.slots[places]  # some slots may be empty
        shown = _spread_over_classes(labels[places], MOST_SHOWN)
        found = method.stored_samples[slots[shown]]
        is_picture = not is_features(found.images) and found.images.shape[1] in (1, 3)  # grey or colour
        pictures = {"sample_images": found.images.cpu()} if is_picture else {}
        self._record(**pictures, sample_labels=found.labels.cpu())
        if method.distiller is not None:
            self._record_soft_labels(method, task, slots, shown)

    def on_task_measured(self, trainer: Trainer, method: Watched, task: int, table: dict[str, Tensor]) -> None:
        """Record the predictions."""
        self._record(**{name: value.cpu() for name, value in table.items()})

    def state_dict(self) -> dict[str, Any]:
        """The tensors recorded so far."""
        return {} if self.observed is None else self.observed.tensors()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the recorded tensors."""
        self.observed = Observed(**state_dict)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Grow the tensors of a finished run with its sequence."""
        saved = checkpoint["callbacks"].get(self.state_key)
        if method_of(pl_module).is_growing and saved and self.observed is not None:
            before = Observed(**saved)
            tensors = grown(before, self.observed.is_class_of_task, self.observed.stream).tensors()
            checkpoint["callbacks"][self.state_key] = tensors

    def _record_soft_labels(self, method: Watched, task: int, slots: Tensor, shown: Tensor) -> None:
        labels = _soft_labels(method, slots).float().cpu()  # (slots, classes)
        is_class = torch.nn.functional.one_hot(method.memory[slots].labels.cpu(), method.num_classes).float()
        means = (is_class.T @ labels) / is_class.sum(dim=0)[:, None]  # nan for classes without samples
        self._record_row(task, soft_labels=means, label_entropy=torch.special.entr(labels).sum(dim=1).mean())
        self._record(sample_soft_labels=labels[shown])

    def _record_row(self, task: int, **rows: Tensor) -> None:
        """Set the rows of a task; those of unfinished tasks are nan, or -1 for integers."""
        assert self.observed is not None
        for name, row in rows.items():
            before = getattr(self.observed, name)
            shape = (len(self.observed.is_class_of_task), *row.shape)
            missing = torch.nan if row.is_floating_point() else -1
            tensor = torch.full(shape, missing, dtype=row.dtype) if before is None else before.clone()
            tensor[task] = row
            self._record(**{name: tensor})

    def _record(self, **tensors: Tensor) -> None:
        assert self.observed is not None
        self.observed = replace(self.observed, **tensors)


def _soft_labels(method: Watched, slots: Tensor) -> Tensor:
    """The current soft labels of the samples in these slots."""
    assert method.distiller is not None
    share = replace(method.memory[local_share(slots)], global_size=len(slots))
    context = method.trainer.precision_plugin.val_step_context()
    with method.streams.set_aside(), evaluating(method), context:  # random labels must not advance the run's streams
        probabilities = method(method.normalised(share.images)).softmax(dim=1)
        labels: Tensor = method.distiller.soft_labels(share, probabilities)
    return gather_shares(labels, len(slots))


def _spread(number: int, most: int) -> Tensor:
    """At most ``most`` evenly spaced indices below ``number``.

    >>> _spread(3, 12), _spread(100, 3)
    (tensor([0, 1, 2]), tensor([ 0, 49, 99]))
    """
    return torch.linspace(0, number - 1, min(number, most), dtype=torch.float64).long()


def _spread_over_classes(labels: Tensor, most: int) -> Tensor:
    """Indices of at most ``most`` samples, evenly spaced over the sorted labels."""
    return labels.argsort(stable=True)[_spread(len(labels), most)]
