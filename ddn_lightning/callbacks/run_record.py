"""What a run leaves behind: its configuration, its results as files, and a table on the screen."""

import csv
import io
import json
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.config_changes import changes
from ddn_lightning.files import write_text
from ddn_lightning.methods.base import ReplayMethod
from ddn_lightning.report.recorded_run import CONFIG_FILE, RESULTS_FILE

PACKAGES = ("ddn-lightning", "lightning", "torch", "torchvision", "torchmetrics")


class RunRecord(Callback):
    """Writes ``config.yaml``, ``results.json`` and ``accuracy_matrix.csv`` into a folder and prints the matrix.

    Args:
        folder: Where to write.
        config: The run's whole configuration as YAML.
    """

    def __init__(self, folder: Path, config: str) -> None:
        self.folder = folder
        self.config = config
        self.has_begun = False
        self._changes: list[str] = []
        self._seconds_before = 0.0
        self._table: Table | None = None
        self._started: float | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what a resumed run is told otherwise than before."""
        if trainer.is_global_zero:
            for line in self._changes:
                print(f"note: {line}", file=sys.stderr)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the configuration, now that everything else has proved to be in order."""
        self._started = time.monotonic()
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / CONFIG_FILE, self.config)

    def on_train_batch_start(self, *_: object) -> None:
        """From now on there is something to lose."""
        self.has_begun = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the results."""
        if not trainer.is_global_zero or not isinstance(pl_module, ReplayMethod):
            return
        if not self.has_begun:
            print("note: this run was finished already, nothing was left to train", file=sys.stderr)
        results = {**results_of(pl_module, Forgetting.of(trainer)), "seconds": round(self._seconds, 1)}
        write_text(self.folder / RESULTS_FILE, json.dumps(results, indent=2) + "\n")
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(["after_task", *(f"task_{task + 1}" for task in range(len(pl_module.accuracy_matrix)))])
        writer.writerows([number, *row] for number, row in enumerate(results["accuracy_matrix"], start=1))
        write_text(self.folder / "accuracy_matrix.csv", table.getvalue())
        self._table = _table(pl_module, Forgetting.of(trainer))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Show the results, now that the progress bar is gone."""
        if self._table is not None:
            Console().print(self._table)
            print(f"Results are in {self.folder}/")
            print(f"See them: {shlex.join(['ddn', 'report', str(self.folder), '--open'])}")

    def state_dict(self) -> dict[str, Any]:
        """The time spent so far, which a resumed run adds to, and the configuration, which it compares with its own."""
        return {"seconds": self._seconds, "config": self.config}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._seconds_before = state_dict["seconds"]
        self._changes = changes(state_dict["config"], self.config)

    @property
    def _seconds(self) -> float:
        return self._seconds_before + (0 if self._started is None else time.monotonic() - self._started)


def results_of(method: ReplayMethod, forgetting: Forgetting) -> dict[str, Any]:
    """A method's results as plain values; accuracies in percent, ``None`` where nothing was measured."""
    summary = dict.fromkeys(("average_accuracy", "forgetting", "backward_transfer", "average_anytime_accuracy"))
    measured = {name: round(float(value), 4) for name, value in forgetting.summary(method.accuracy_matrix).items()}
    return {
        **summary,
        **measured,
        "forgetting_definition": {"over": forgetting.over, "reference": forgetting.reference},
        "accuracy_matrix": _plain(method.accuracy_matrix),
        "task_il_matrix": _plain(method.task_il_matrix),
        "statistics": forgetting.statistics_of(method),
        **_calibrated(method, forgetting),
        "tasks_finished": method.tasks_finished,
        "seed": method.streams.seed,
        "method": type(method).__name__,
        "plugin": None if method.distiller is None else type(method.distiller).__name__,
        "dataset": method.sequence.name,
        "class_names": getattr(method.sequence, "class_names", None),
        "buffer_size": 0 if method.kept is None else method.kept.buffer_size,
        "versions": {package: version(package) for package in PACKAGES},
    }


def _calibrated(method: ReplayMethod, forgetting: Forgetting) -> dict[str, Any]:
    """The results with calibrated statistics, where they were measured besides the others."""
    if forgetting.statistics_of(method) != "both":
        return {}
    measured = forgetting.summary(method.calibrated_accuracy_matrix)
    summary = {f"calibrated_{name}": round(float(value), 4) for name, value in measured.items()}
    empty = dict.fromkeys(("calibrated_average_accuracy", "calibrated_forgetting"))
    return {**empty, **summary, "calibrated_accuracy_matrix": _plain(method.calibrated_accuracy_matrix)}


def _plain(matrix: Tensor) -> list[list[float | None]]:
    return [[None if value != value else round(value, 4) for value in row] for row in matrix.tolist()]


def _table(method: ReplayMethod, forgetting: Forgetting) -> Table:
    """The accuracy matrix: a row per task learned, a column per task measured, ACC and FM so far on the right."""
    matrix = method.accuracy_matrix
    name = type(method).__name__
    plugin = "" if method.distiller is None else f" + {type(method.distiller).__name__}"
    how = " with calibrated BatchNorm statistics" if forgetting.statistics_of(method) == "memory" else ""
    table = Table(title=f"{name}{plugin} on {method.sequence.name}: accuracy (%) after each task{how}")
    if found := forgetting.summary(method.calibrated_accuracy_matrix):
        acc, fm = (float(found[key]) for key in ("average_accuracy", "forgetting"))
        table.caption = f"with calibrated BatchNorm statistics: ACC {acc:.2f}, FM {fm:.2f}"
    table.add_column("learned")
    for column in (*(f"task {task + 1}" for task in range(len(matrix))), "ACC", "FM"):
        table.add_column(column, justify="right")
    for stage, row in enumerate(matrix.tolist(), start=1):
        cells = ["" if value != value else f"{value:.2f}" for value in row]
        measured = forgetting.summary(matrix[:stage, :stage]) if cells[stage - 1] else {}
        so_far = [float(measured[key]) for key in ("average_accuracy", "forgetting") if measured]
        table.add_row(f"task {stage}", *cells, *(f"[bold]{value:.2f}[/bold]" for value in so_far))
    return table
