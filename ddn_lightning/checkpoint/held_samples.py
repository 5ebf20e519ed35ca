"""Samples that a checkpoint brings along must be such as the data has."""

import torch
from torch import Tensor

from ddn_lightning.checkpoint import checks
from ddn_lightning.samples import Samples


def check_samples(part: str, held: Samples, data: Samples, task_classes: Tensor, has_logits: bool = False) -> None:
    """Raise unless images, labels, tasks and outputs could be those of samples of a sequence.

    Args:
        part: Whose samples, for the message.
        held: The samples.
        data: Samples of the sequence, which say what an image looks like.
        task_classes: Classes of each task (tasks, classes per task).
        has_logits: Whether outputs are stored with the samples.
    """
    size, num_classes = len(held), task_classes.numel()
    labels = checks.tensor(f"{part}/labels", held.labels, torch.int64, (size,), 0, num_classes - 1).cpu()
    checks.tensor(f"{part}/images", held.images, data.images.dtype, (size, *data.images.shape[1:]))
    tasks = checks.tensor(f"{part}/tasks", held.tasks, torch.int64, (size,), 0, len(task_classes) - 1).cpu()
    expected = torch.empty(num_classes, dtype=torch.long)
    expected[task_classes] = torch.arange(len(task_classes))[:, None]
    if (is_wrong := expected[labels] != tasks).any():
        label, task = int(labels[is_wrong][0]), int(tasks[is_wrong][0])
        checks.refuse(f"{part}/tasks", f"{int(expected[label])} for class {label}", task)
    if has_logits:
        checks.tensor(f"{part}/logits", held.logits, None, (size, num_classes))
    elif held.logits is not None:
        checks.refuse(f"{part}/logits", "left out by a method that stores none", held.logits)
