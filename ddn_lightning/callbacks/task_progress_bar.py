"""A progress bar of the whole sequence on one line of 80 columns, or plain lines where there is no terminal."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich import get_console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from ddn_lightning.callbacks.continual_evaluation import ContinualEvaluation
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.distill.learner import Watched, is_watched

BAR_WIDTH = 12  # leaves room for the description and the status in 80 columns


class TaskProgressBar(RichProgressBar):
    """Shows the task, the epoch in it, ACC and FM of the last evaluation, the loss, and the time left.

    The bar covers the whole sequence. Where there is no terminal, each evaluation prints a line instead.

    Args:
        refresh_rate: Updates of the bar per second.
        folder: Folder of the results, named in the first line.
    """

    def __init__(self, refresh_rate: int = 10, folder: Path | None = None) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self.folder = folder
        self.status = ""  # of the line of training
        self._results = ""
        self._started = 0.0
        self._share_before = 0.0  # of the sequence, when this fit began

    @property
    def is_enabled(self) -> bool:
        """Whether there is a terminal or notebook to draw on."""
        console = get_console()
        return super().is_enabled and (console.is_terminal or console.is_jupyter)

    def configure_columns(self, trainer: Trainer) -> list[ProgressColumn]:
        """Description, bar and status."""
        return [
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(BAR_WIDTH),
            _Status(self),
        ]

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Nothing for Lightning's column of metrics: the status has the line's end."""
        return {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what is trained, and show the results so far of a resumed run."""
        if is_watched(pl_module):
            self._print(header(pl_module, self.folder))
        super().on_train_start(trainer, pl_module)
        self._started, self._share_before = monotonic(), self._share(trainer, 0)
        self._read_results(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the bar count the epochs of the sequence instead of the batches of the epoch."""
        super().on_train_epoch_start(trainer, pl_module)
        self._draw(trainer, 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._draw(trainer, batch_idx + 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new results."""
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._read_results(trainer, pl_module)
            batches = int(trainer.num_training_batches)
            self._draw(trainer, batches)
            if not self.is_enabled:
                self._print(f"{self._place(trainer)}  {self._status(trainer, batches)}")

    def _get_train_description(self, current_epoch: int) -> str:
        return self._place(self.trainer)

    def _place(self, trainer: Trainer) -> str:
        """Task and epoch, counted from 1.

        A data module without tasks has epochs only.
        """
        per_task = getattr(trainer.datamodule, "epochs_per_task", None)  # type: ignore[attr-defined]  # set by the fit
        if per_task is None:
            return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        task, epoch = divmod(trainer.current_epoch, per_task)
        tasks = -(-(trainer.max_epochs or 0) // per_task)
        return f"task {task + 1}/{tasks}  epoch {epoch + 1}/{per_task}"

    def _draw(self, trainer: Trainer, batches: int) -> None:
        if self.is_disabled or self.progress is None or self.train_progress_bar_id is None:
            return
        self.status = self._status(trainer, batches)
        share = self._share(trainer, batches)
        description = self._place(trainer)
        self.progress.update(self.train_progress_bar_id, total=1.0, completed=share, description=description)
        self.refresh()

    def _status(self, trainer: Trainer, batches: int) -> str:
        loss = trainer.progress_bar_metrics.get("train/loss")
        parts = [self._results, _anytime(trainer), f"loss {float(loss):.3g}" if loss is not None else ""]
        done = self._share(trainer, batches)
        if done > self._share_before:
            left = (monotonic() - self._started) * (1 - done) / (done - self._share_before)
            parts.append(f"{timedelta(seconds=round(left))} left")
        return "  ".join(part for part in parts if part)

    def _share(self, trainer: Trainer, batches: int) -> float:
        """How much of all epochs is finished, from 0 to 1."""
        of_epoch = batches / max(1, int(trainer.num_training_batches))
        return min(1.0, (trainer.current_epoch + of_epoch) / max(1, trainer.max_epochs or 1))

    def _read_results(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_watched(pl_module):  # not in each step: reading the matrix waits for the device
            measured = Forgetting.of(trainer).summary(pl_module.accuracy_matrix)
            names = {"ACC": "average_accuracy", "FM": "forgetting"}
            self._results = " ".join(
                f"{short} {float(measured[name]):.1f}" for short, name in names.items() if name in measured
            )

    def _print(self, line: str) -> None:
        if self._enabled and self.refresh_rate > 0:  # on the first rank only
            get_console().print(line, highlight=False, soft_wrap=True)


class _Status(ProgressColumn):
    """The status of training; of other lines, such as an evaluation, how many steps are done."""

    def __init__(self, bar: TaskProgressBar) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self.bar = bar

    def render(self, task: Task) -> Text:
        if task.id == self.bar.train_progress_bar_id:
            return Text(self.bar.status)
        return Text(f"{int(task.completed)}/{'?' if task.total is None else int(task.total)}")


def header(method: Watched, folder: Path | None = None) -> str:
    """One line: method and plug-in, data, tasks, network, memory, device and, if known, the folder of the results."""
    sequence, stored = method.sequence, method.stored_samples
    plugin = "" if method.distiller is None else f" + {type(method.distiller).__name__}"
    parts = [
        f"{type(method).__name__}{plugin} on {sequence.name}: {sequence.num_tasks} tasks",
        type(method.backbone).__name__,
        "no memory" if stored is None else f"memory of {stored.buffer_size}",
        str(method.device),
    ]
    return ", ".join(parts) + (f"; results in {folder}/" if folder is not None else "")


def _anytime(trainer: Trainer) -> str:
    """The mean accuracy of the last continual evaluation, if any."""
    evaluation = ContinualEvaluation.of(trainer)
    evaluations = () if evaluation is None else evaluation.record.evaluations
    return f"now {evaluations[-1].average_accuracy:.1f}" if evaluations else ""


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
