"""The run folder of a module that is trained with :class:`Replay`, for ``ddn report`` and ``ddn compare``."""

import shlex
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ddn_lightning.callbacks.run_record import PACKAGES, dataset_title
from ddn_lightning.construction import CLASS_PATH, INIT_ARGS, construction_of, path_of, plain
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.metrics.accuracy_matrix import summary
from ddn_lightning.runs.results import COMPLETE, INCOMPLETE, Results, write_results
from ddn_lightning.runs.run_folder import RunFolder


class ReplayRecord:
    """Writes ``config.yaml``, ``results.json`` and ``accuracy_matrix.csv`` of a run.

    Args:
        path: The run folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds_before = 0.0  # of a run that was resumed
        self._started: float | None = None
        self._folder: RunFolder | None = None

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return self.seconds_before + (0 if self._started is None else time.monotonic() - self._started)

    def check(self, is_resuming: bool) -> None:
        """Refuse a folder with another run."""
        if self.path.exists() and not is_resuming:
            raise ConfigurationError(f"folder must be new, or the run be resumed with ckpt_path=, got {self.path}")

    def begin(self, module: LightningModule, sequence: TaskSequence, replay: Mapping[str, Any], seed: int) -> None:
        """Write the configuration: classes and arguments of module and data, and those of Replay."""
        self._started = time.monotonic()
        is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._folder = RunFolder(self.path, is_new).claim()
        model = {CLASS_PATH: path_of(type(module)), INIT_ARGS: plain(dict(module.hparams))}
        config = {"name": self.path.name, "command": shlex.join(["python", *sys.argv]), "seed_everything": seed}
        config |= {"model": model, "replay": dict(replay), "data": construction_of(sequence)}
        self._folder.begin(yaml.safe_dump(config, sort_keys=False))

    def finish(
        self, trainer: Trainer, sequence: TaskSequence, matrices: tuple[Tensor, Tensor], test: list[float], **facts: Any
    ) -> None:
        """Write the results.

        Args:
            trainer: The Trainer.
            sequence: The data.
            matrices: The accuracy matrix and the task-incremental one.
            test: Accuracies on the test images of a run with a validation split.
            **facts: Further entries of the results, such as the seed.
        """
        matrix, task_il = matrices
        tasks = int((~matrix.isnan()).any(dim=1).sum())
        opened = {"average_accuracy": round(sum(test) / len(test), 4), "accuracies": test} if test else None
        results = Results(
            status=COMPLETE if tasks == len(matrix) else INCOMPLETE,
            dataset=dataset_title(sequence),
            tasks_finished=tasks,
            accuracy_matrix=_plain(matrix),
            task_il_matrix=_plain(task_il),
            task_il_average_accuracy=_summary(task_il).get("average_accuracy"),
            forgetting_definition={"over": "previous", "reference": "best"},
            steps=trainer.global_step,
            seconds=round(self.seconds, 1),
            measured_on=sequence.measured_on,
            validation=sequence.validation_record(),
            test=opened,
            class_names=sequence.label_names(),
            data=sequence.data_record().as_plain(),
            versions={package: version(package) for package in PACKAGES},
            **_summary(matrix),
            **facts,
        )
        write_results(self.path, results)
        self.release()

    def release(self) -> None:
        """Unlock the folder."""
        if self._folder is not None:
            self._folder.release()
            self._folder = None


def _summary(matrix: Tensor) -> dict[str, Any]:
    return {name: round(float(value), 4) for name, value in summary(matrix).items()}


def _plain(matrix: Tensor) -> list[list[float | None]]:
    return [[None if value != value else round(value, 4) for value in row] for row in matrix.tolist()]
