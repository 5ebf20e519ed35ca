"""A progress bar that shows the task, and extra lines in it for the work between two tasks."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from ddn_lightning.callbacks.continual_evaluation import ContinualEvaluation
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.learner import is_learner


class TaskProgressBar(RichProgressBar):
    """Lightning's Rich bar with the task, ACC and FM after the last finished task, and the last continual evaluation.

    Args:
        refresh_rate: Batches between two updates.
    """

    def __init__(self, refresh_rate: int = 1) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self._so_far: dict[str, str] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the results so far of a resumed run."""
        super().on_train_start(trainer, pl_module)
        self._update_results(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new results."""
        super().on_validation_end(trainer, pl_module)
        self._update_results(trainer, pl_module)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The values to the right of the bar."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if is_learner(pl_module) and pl_module.tasks_seen:
            task = {"task": f"{pl_module.tasks_seen}/{pl_module.sequence.num_tasks}"}
            metrics = {**task, **self._so_far, **_now(trainer), **metrics}
        return metrics

    def _update_results(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_learner(pl_module):  # not in get_metrics: reading the matrix waits for the device
            measured = Forgetting.of(trainer).summary(pl_module.accuracy_matrix)
            names = {"ACC": "average_accuracy", "FM": "forgetting"}
            self._so_far = {short: f"{float(measured[name]):.1f}" for short, name in names.items() if measured}


def _now(trainer: Trainer) -> dict[str, str]:
    """The mean accuracy of the last continual evaluation, if any."""
    evaluation = ContinualEvaluation.of(trainer)
    evaluations = () if evaluation is None else evaluation.record.evaluations
    return {"now": f"{evaluations[-1].average_accuracy:.1f}"} if evaluations else {}


def track(trainer: Trainer, steps: int, description: str) -> Iterator[int]:
    """Iterate over ``range(steps)``, shown as an extra line of the Trainer's Rich bar if it has one."""
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
