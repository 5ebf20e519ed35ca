"""Writes a run's configuration and results to its folder, and prints the accuracy matrix."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ddn_lightning.callbacks.accuracy_table import accuracy_tables
from ddn_lightning.callbacks.continual_evaluation import ContinualEvaluation
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.stop_at_task import StopAtTask
from ddn_lightning.callbacks.stored_bytes import stored_bytes
from ddn_lightning.callbacks.task_callback import TaskCallback
from ddn_lightning.data.task_sequence import TaskSequence
from ddn_lightning.distill.learner import Watched, is_watched
from ddn_lightning.errors import DivergenceError, note
from ddn_lightning.runs.anytime import ANYTIME_FILE, write_anytime
from ddn_lightning.runs.config import changes, load_yaml
from ddn_lightning.runs.results import (
    COMPLETE,
    DIVERGED,
    INCOMPLETE,
    RESULTS_FILE,
    STOPPED,
    Results,
    read_divergence,
    read_stop,
    write_results,
)
from ddn_lightning.runs.run_folder import RunFolder

PACKAGES = ("ddn-lightning", "lightning", "torch", "torchvision", "torchmetrics")


class RunRecord(TaskCallback):
    """Writes ``config.yaml``, ``results.json`` and ``accuracy_matrix.csv`` to a folder, and prints the matrix.

    With a :class:`ContinualEvaluation` it also writes ``anytime.csv``.

    Args:
        folder: The run folder, which it tells that training begins.
        config: The complete configuration of the run, as YAML.
    """

    def __init__(self, folder: RunFolder, config: str) -> None:
        self.run_folder = folder
        self.config = config
        self.results: Results | None = None  # once written
        self.has_begun = False
        self._changes: list[str] = []
        self._seconds_before = 0.0
        self._processor_before = 0.0  # seconds
        self._processor_started: float | None = None
        self._processes = 1
        self._output: list[Table | str] = []
        self._started: float | None = None

    @property
    def folder(self) -> Path:
        """The path of the run folder."""
        return self.run_folder.path

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the options of a resumed run that differ from the checkpoint, now that it is accepted; write them."""
        is_growing = is_watched(pl_module) and pl_module.is_growing  # then the data differs, of course
        for line in self._changes:
            if not (is_growing and line.startswith("data.")):
                note(line)
        self._started, self._processor_started = time.monotonic(), time.process_time()
        self._processes = trainer.world_size
        if trainer.is_global_zero:
            self.run_folder.begin(self.config)
            if read_divergence(self.folder) or read_stop(self.folder):  # of an earlier start: out of date
                (self.folder / RESULTS_FILE).unlink()
            (self.folder / ANYTIME_FILE).unlink(missing_ok=True)

    def on_train_batch_start(self, *_: object) -> None:
        """Remember that training has begun."""
        self.has_begun = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the results."""
        if not trainer.is_global_zero or not is_watched(pl_module):
            return
        is_complete = pl_module.tasks_finished == len(pl_module.accuracy_matrix)
        if is_complete and not self.has_begun:
            note("this run was finished already, nothing was left to train")
        reason = None if is_complete else stop_reason(trainer, pl_module)
        status = COMPLETE if is_complete else INCOMPLETE if reason is None else STOPPED
        self._write(trainer, pl_module, status, reason)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print the results, after the progress bar is gone."""
        self._print()

    def on_divergence(self, trainer: Trainer, method: Watched, reason: str) -> None:
        """Write the results so far."""
        try:
            if trainer.is_global_zero:
                self._write(trainer, method, DIVERGED, reason)
        finally:
            trainer.strategy.barrier()  # the first rank to exit ends the others

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Print the results of a run that diverged, after the progress bar is gone."""
        if isinstance(exception, DivergenceError):
            self._print()

    def state_dict(self) -> dict[str, Any]:
        """The time spent so far, and the configuration, which a resumed run compares with its own."""
        return {"seconds": self._seconds, "processor_seconds": self._processor_seconds, "config": self.config}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the time spent, and compare the configurations."""
        self._seconds_before, self._processor_before = state_dict["seconds"], state_dict["processor_seconds"]
        self._changes = changes(state_dict["config"], self.config)

    def _write(self, trainer: Trainer, method: Watched, status: str, reason: str | None = None) -> None:
        forgetting, evaluation = Forgetting.of(trainer), ContinualEvaluation.of(trainer)
        processor, anytime = self._processor_seconds, {}
        if evaluation is not None and evaluation.record.evaluations:
            anytime = evaluation.results(method)
            write_anytime(self.folder, evaluation.record)
        self.results = replace(
            results_of(method, forgetting, status),
            reason=reason,
            steps=trainer.global_step,
            chosen_on_seeds=tuple((load_yaml(self.config) or {}).get("chosen_on_seeds") or ()),
            seconds=round(self._seconds, 1),
            cpu_minutes=round(processor / 60, 4),
            anytime=anytime,
        )
        write_results(self.folder, self.results)
        self._output = self._described(trainer, method, self.results)

    def _described(self, trainer: Trainer, method: Watched, results: Results) -> list[Table | str]:
        """The results for the screen."""
        forgetting = Forgetting.of(trainer)
        plugin = "" if results.plugin is None else f" + {results.plugin}"
        where = " on the validation split" if results.measured_on == "validation" else ""
        title = f"{results.method}{plugin} on {results.dataset}: accuracy (%){where} after each task"
        if results.statistics == "memory":
            title += " with calibrated BatchNorm statistics"
        output: list[Table | str] = [
            *accuracy_tables(method.accuracy_matrix, forgetting.summary, title, Console().width)
        ]
        if results.calibrated_average_accuracy is not None:
            acc, fm = results.calibrated_average_accuracy, results.calibrated_forgetting
            shown = "" if fm is None else f", FM {fm:.2f}"  # unknown where no task was measured before the last
            output.append(f"with calibrated BatchNorm statistics: ACC {acc:.2f}{shown}")
        if results.test is not None:
            output.append(_test_line(results))
        if results.anytime:
            output.append(_anytime_line(results))
        if trainer.limit_val_batches == 0:
            output.append("nothing was measured: trainer.limit_val_batches is 0")
        if results.status != COMPLETE:
            place = results.reason if results.status == STOPPED else f"stopped at step {results.steps}"
            learned = f"{results.tasks_finished} of {len(results.accuracy_matrix)} tasks learned"
            output.append(f"{results.status}: {learned}, {place}")
        return output

    def _print(self) -> None:
        if self._output:
            for part in self._output:
                Console(soft_wrap=isinstance(part, str), highlight=False).print(part)
            print(f"Results are in {self.folder}/")
            print(f"See them: {shlex.join(['ddn', 'report', str(self.folder), '--open'])}")

    @property
    def _seconds(self) -> float:
        return self._seconds_before + (0 if self._started is None else time.monotonic() - self._started)

    @property
    def _processor_seconds(self) -> float:
        """Processor time of all threads; with several processes, the first one's time for each of them."""
        started = self._processor_started
        now = 0.0 if started is None else self._processes * (time.process_time() - started)
        return self._processor_before + now


def stop_reason(trainer: Trainer, method: Watched) -> str | None:
    """Why a :class:`StopAtTask` has stopped training, if one has."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    reasons = (one.reason(method.accuracy_matrix) for one in callbacks if isinstance(one, StopAtTask))
    return next((reason for reason in reasons if reason is not None), None)


def results_of(method: Watched, forgetting: Forgetting, status: str) -> Results:
    """A method's results; accuracies in percent, ``None`` where nothing was measured."""
    sequence, is_both = method.sequence, forgetting.statistics_of(method) == "both"
    summary = _summary(method.accuracy_matrix, forgetting)
    calibrated = _summary(method.calibrated_accuracy_matrix, forgetting) if is_both else {}
    has_split = sequence.validation is not None
    return Results(
        status=status,
        method=type(method).__name__,
        plugin=None if method.distiller is None else type(method.distiller).__name__,
        dataset=dataset_title(sequence),
        buffer_size=0 if method.stored_samples is None else method.stored_samples.buffer_size,
        stored_bytes=stored_bytes(method),
        seed=method.streams.seed,
        tasks_finished=method.tasks_finished,
        accuracy_matrix=_plain(method.accuracy_matrix),
        average_accuracy=summary.get("average_accuracy"),
        forgetting=summary.get("forgetting"),
        backward_transfer=summary.get("backward_transfer"),
        average_anytime_accuracy=summary.get("average_anytime_accuracy"),
        forgetting_definition={"over": forgetting.over, "reference": forgetting.reference},
        task_il_average_accuracy=_summary(method.task_il_matrix, forgetting).get("average_accuracy"),
        task_il_matrix=_plain(method.task_il_matrix),
        statistics=forgetting.statistics_of(method),
        calibrated_average_accuracy=calibrated.get("average_accuracy"),
        calibrated_forgetting=calibrated.get("forgetting"),
        calibrated_accuracy_matrix=_plain(method.calibrated_accuracy_matrix) if is_both else None,
        measured_on=sequence.measured_on,
        validation=sequence.validation_record() if has_split else None,
        test=_on_test_images(method) if has_split else None,
        class_names=_names(method),
        data=sequence.data_record().as_plain(),
        versions={package: version(package) for package in PACKAGES},
        evaluate_every_n_tasks=sequence.evaluate_every_n_tasks,
        images_per_task=sequence.images_per_task,
    )


def dataset_title(sequence: TaskSequence) -> str:
    """The data's name, with what makes its results incomparable with those of the data alone."""
    kinds = list(dict.fromkeys(type(stream).__name__ for stream in sequence.stream))
    kinds += [] if sequence.validation is None else ["validation split"]  # fewer training images
    sizes = sequence.is_class_of_task.sum(dim=1)
    kinds += ["uneven tasks"] if int(sizes.min()) < int(sizes.max()) else []
    return f"{sequence.name} ({', '.join(kinds)})" if kinds else sequence.name


def _names(method: Watched) -> list[str] | None:
    """The class names, and numbers for outputs without a class; ``None`` if the data has no names."""
    names = method.sequence.label_names()
    return None if names is None else [*names, *map(str, range(len(names), method.num_classes))]


def _on_test_images(method: Watched) -> dict[str, Any] | None:
    """The accuracies on the test images, if a run with a validation split has opened them."""
    test: dict[str, Any] = {}
    for kind, values in method.progress.test_accuracy.items():
        prefix = "" if kind == "class_il" else f"{kind}_"
        test[f"{prefix}average_accuracy"] = _mean(values)
        test[f"{prefix}accuracies"] = [None if value is None else round(value, 4) for value in values]
    return test or None


def _mean(accuracies: Sequence[float | None]) -> float | None:
    """The mean over the tasks, or ``None`` if one was not measured."""
    known = [value for value in accuracies if value is not None]
    return round(fmean(known), 4) if len(known) == len(accuracies) else None


def _test_line(results: Results) -> str:
    if results.acc is None:
        return "no ACC on the test images: trainer.limit_test_batches has left out a task"
    calibrated = results.calibrated_acc
    others = "" if calibrated is None else f", {calibrated:.2f} with calibrated statistics"
    return f"ACC on the test images, opened once: {results.acc:.2f}{others}"


def _anytime_line(results: Results) -> str:
    """The main measures of continual evaluation, and its cost."""
    found, seconds = results.anytime, results.seconds or 0.1
    titles = {"AAA": "average_accuracy_over_steps", "min-ACC": "minimum_accuracy", "WC-ACC": "worst_case_accuracy"}
    measures = [f"{title} {found[name]:.2f}" for title, name in titles.items() if found.get(name) is not None]
    cost = f"{found['seconds']:.1f} s, {100 * found['seconds'] / max(seconds, 0.1):.0f} % of the run"
    where = f"{found['evaluations']} evaluations of at most {found['images']} images ({cost})"
    return f"over all steps: {', '.join([*measures, where])}"


def _summary(matrix: Tensor, forgetting: Forgetting) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in forgetting.summary(matrix).items()}


def _plain(matrix: Tensor) -> list[list[float | None]]:
    return [[None if value != value else round(value, 4) for value in row] for row in matrix.tolist()]
