"""A progress bar that says which task it is, and lines in it for work between two tasks."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.learner import Learner


class TaskProgressBar(RichProgressBar):
    """Lightning's Rich bar with the task, and the ACC and FM after the last finished one.

    Args:
        refresh_rate: Batches between two updates.
    """

    def __init__(self, refresh_rate: int = 1) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self._so_far: dict[str, str] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show what a resumed run has reached already."""
        super().on_train_start(trainer, pl_module)
        self._look(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show what was just measured."""
        super().on_validation_end(trainer, pl_module)
        self._look(trainer, pl_module)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """What stands to the right of the bar."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if isinstance(pl_module, Learner) and pl_module.tasks_seen:
            metrics = {"task": f"{pl_module.tasks_seen}/{pl_module.sequence.num_tasks}", **self._so_far, **metrics}
        return metrics

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, Learner):  # once per task, not per refresh: reading it waits for the device
            measured = Forgetting.of(trainer).summary(pl_module.accuracy_matrix)
            names = {"ACC": "average_accuracy", "FM": "forgetting"}
            self._so_far = {short: f"{float(measured[name]):.1f}" for short, name in names.items() if measured}


def track(trainer: Trainer, steps: int, description: str) -> Iterator[int]:
    """Count to ``steps``, shown as one more line of the Trainer's Rich bar where there is one.

    Lightning shows the bar on the first rank only; on the others, with another bar or with none, nothing is shown.
    """
    bar = trainer.progress_bar_callback
    if not isinstance(bar, RichProgressBar) or not bar.is_enabled or bar.progress is None:
        yield from range(steps)
        return
    line = bar.progress.add_task(f"[{bar.theme.description}]{description}", total=steps)
    try:
        for step in range(steps):
            yield step
            bar.progress.advance(line)
            bar.refresh()
    finally:
        bar.progress.remove_task(line)
