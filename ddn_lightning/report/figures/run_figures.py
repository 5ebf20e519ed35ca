"""All figures of one run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ddn_lightning.report.figures.accuracy import accuracy_matrix_figure, scale_bottom, task_accuracy_figure
from ddn_lightning.report.figures.anytime import Band, anytime_tasks_figure
from ddn_lightning.report.figures.memory import composition_figure, entropy_figure, sample_figure, soft_label_figure
from ddn_lightning.report.figures.predictions import (
    by_task_figure,
    confusion_figure,
    is_shown_by_task,
    normalised,
    probability_figure,
    probability_map,
    shares_by_task,
)
from ddn_lightning.report.figures.stream import stream_figure
from ddn_lightning.report.figures.style import save, tasks_left_out
from ddn_lightning.report.run_labels import run_labels
from ddn_lightning.runs.observed import Observed
from ddn_lightning.runs.recorded_run import Curve, RecordedRun
from ddn_lightning.runs.run_folder import FIGURES_FOLDER


@dataclass(frozen=True)
class Picture:
    """A figure with its texts.

    Args:
        name: Name of its files, without a suffix.
        title: Caption.
        figure: The figure.
        description: Alternative text with the main numbers.
    """

    name: str
    title: str
    figure: Figure
    description: str


def pictures_of(run: RecordedRun) -> list[Picture]:
    """The figures for which a run has recorded the numbers."""
    pictures = [*_accuracy(run), *_anytime(run)]
    if run.observed is not None:
        names = None if run.results is None else run.results.class_names
        pictures += _predictions(run_labels([run])[run.name], run.observed, names)
        pictures += _stream(run.observed, names)
        pictures += _memory(run.observed, names)
        pictures += _labels(run, run.observed, names)
    return pictures


def save_pictures(pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG to ``figures/`` in the run folder; returns the PNG files."""
    for picture in pictures:
        save(picture.figure, folder / FIGURES_FOLDER, picture.name)
    return [folder / FIGURES_FOLDER / f"{picture.name}.png" for picture in pictures]


def _accuracy(run: RecordedRun) -> Iterator[Picture]:
    if run.results is None or run.results.matrix.isnan().all():
        return
    matrix = run.results.matrix
    last = [row for row in matrix if not row.isnan().all()][-1]
    finals = ", ".join(f"task {task + 1} {value:.1f} %" for task, value in enumerate(last.tolist()) if value == value)
    scale = f"Scales begin at {scale_bottom(float(matrix.nan_to_num(nan=100.0).min())):.0f} %."
    yield Picture(
        "accuracy_matrix",
        f"Accuracy on each task (columns) after each task learned (rows). {scale}",
        accuracy_matrix_figure(matrix),
        f"Accuracy on each task after each task learned. Last row: {finals}.",
    )
    yield Picture(
        "task_accuracy",
        f"Accuracy of each task over training{tasks_left_out(len(matrix))}. {most_forgotten(matrix)}",
        task_accuracy_figure({run.name: run.task_curves}),
        f"Accuracy of each task over training. At the end: {finals}.",
    )


def most_forgotten(matrix: Tensor) -> str:
    """The task that has fallen most from its best, as a sentence.

    >>> most_forgotten(torch.tensor([[98.0, torch.nan], [90.0, 95.0]]))
    'Task 1 fell most, from 98.0 to 90.0 %.'
    """
    last = [row for row in matrix if not row.isnan().all()][-1]
    best = matrix.nan_to_num(nan=-1.0).amax(dim=0)
    fall = (best - last).nan_to_num(nan=0.0)
    task = int(fall.argmax())
    if fall[task] <= 0:
        return "No task fell from its best."
    return f"Task {task + 1} fell most, from {best[task]:.1f} to {last[task]:.1f} %."


def _anytime(run: RecordedRun) -> Iterator[Picture]:
    if run.anytime is None:
        return
    steps, accuracies = run.anytime.steps, run.anytime.accuracies
    lowest = accuracies.nan_to_num(nan=torch.inf).amin(dim=0).tolist()
    known = ", ".join(f"task {task + 1} {value:.1f} %" for task, value in enumerate(lowest) if value <= 100)
    yield Picture(
        "anytime",
        f"Accuracy of each task over steps, on a subset of the images{tasks_left_out(accuracies.shape[1])}",
        anytime_tasks_figure([Band.of(steps, column[None]) for column in accuracies.T], run.anytime.switches),
        f"Accuracy of each task at {len(steps)} evaluations; dotted lines are task switches. Lowest: {known}.",
    )


def _predictions(run: str, observed: Observed, names: Sequence[str] | None) -> Iterator[Picture]:
    if observed.confusion is not None:
        recall = float(normalised(observed.confusion).diagonal().nanmean())
        description = f"Normalised confusion matrix: on average {100 * recall:.1f} % of a class are recognised."
        yield confusion_picture({run: observed}, names, description)
    if observed.probability is not None:
        learned = [classes for classes in observed.is_class_of_task if not observed.probability[classes].isnan().all()]
        last_task = float(observed.probability.nanmean(dim=0)[learned[-1]].sum()) if learned else 0.0
        description = f"Mean predicted probabilities: the classes of the last task get {100 * last_task:.1f} % of all."
        yield probability_picture({run: observed}, names, description)


def confusion_picture(runs: Mapping[str, Observed], names: Sequence[str] | None, description: str) -> Picture:
    """Confusion matrices side by side; of many classes, by task."""
    tables = {label: one.confusion for label, one in runs.items() if one.confusion is not None}
    if not all(is_shown_by_task(one.is_class_of_task) for one in runs.values()):
        title = "Which class is taken for which"
        return Picture("confusion", title, confusion_figure(tables, names), description)
    shares = {label: shares_by_task(normalised(t), runs[label].is_class_of_task) for label, t in tables.items()}
    title = f"Which task's classes are taken for which task's: {_summed(runs)}"
    return Picture("confusion", title, by_task_figure(shares, "task of the predicted class (%)"), description)


def probability_picture(
    runs: Mapping[str, Observed], names: Sequence[str] | None, description: str, most_in_panels: int = 0
) -> Picture:
    """Mean predicted probabilities side by side; of up to ``most_in_panels`` classes in panels, of many by task."""
    tables = {label: one.probability for label, one in runs.items() if one.probability is not None}
    if all(is_shown_by_task(one.is_class_of_task) for one in runs.values()):
        shares = {label: shares_by_task(table, runs[label].is_class_of_task) for label, table in tables.items()}
        title = f"Mean predicted probability of each task's classes: {_summed(runs)}"
        return Picture("probability", title, by_task_figure(shares, "task of the class (%)"), description)
    draw = probability_figure if len(next(iter(tables.values()))) <= most_in_panels else probability_map
    return Picture("probability", "Mean predicted probabilities of each true class", draw(tables, names), description)


def _summed(runs: Mapping[str, Observed]) -> str:
    """What a figure by task leaves out.

    >>> _summed({"ER": Observed(torch.eye(4).bool())})
    '4 classes, summed by task'
    """
    return f"{next(iter(runs.values())).num_classes} classes, summed by task"


def _stream(observed: Observed, names: Sequence[str] | None) -> Iterator[Picture]:
    if observed.stream is None:
        return
    counts = observed.stream.sum(dim=0)
    several = int((observed.stream.view(len(observed.is_class_of_task), -1, len(counts)).sum(1) > 0).sum(0).gt(1).sum())
    yield Picture(
        "stream",
        "Which class comes when" + ("" if observed.composition is None else ", and what the memory holds of it"),
        stream_figure(observed.stream, len(observed.is_class_of_task), observed.composition, names),
        f"{int(counts.sum())} training samples, {int(counts.min())} to {int(counts.max())} of a class; {several} of "
        f"{len(counts)} classes come in several tasks.",
    )


def _memory(observed: Observed, names: Sequence[str] | None) -> Iterator[Picture]:
    if observed.composition is not None:
        by_task = observed.composition, observed.is_class_of_task
        if observed.memory_tasks is not None:  # a class comes in several tasks
            by_task = observed.memory_tasks, torch.eye(len(observed.memory_tasks), dtype=torch.bool)
        ended = (by_task[0] >= 0).any(dim=1).nonzero().flatten().tolist() or [0]  # not all, if the run was stopped
        counts = [int(by_task[0][ended[-1], chosen].clamp_min(0).sum()) for chosen in by_task[1]]
        listed = ", ".join(f"task {task + 1} {number}" for task, number in enumerate(counts))
        yield Picture(
            "memory",
            "What the memory holds",
            composition_figure(*by_task),
            f"Samples of each task in memory at the end: {listed}.",
        )
    if observed.sample_images is not None and observed.sample_labels is not None:
        soft = observed.sample_soft_labels
        yield Picture(
            "samples",
            "Samples of the memory" if soft is None else "Samples of the memory: hard label → soft label",
            sample_figure(observed.sample_images, observed.sample_labels, soft, names),
            f"{len(observed.sample_labels)} images of the memory with their labels.",
        )


def _labels(run: RecordedRun, observed: Observed, names: Sequence[str] | None) -> Iterator[Picture]:
    if observed.soft_labels is None:
        return
    last = max((t for t, labels in enumerate(observed.soft_labels) if not labels.isnan().all()), default=0)
    label, labels = run_labels([run])[run.name], observed.soft_labels[last]
    entropy = entropy_curve(run)
    ends = f"from {entropy.values[0]:.2f} to {entropy.values[-1]:.2f} nats" if entropy.values else "unknown"
    true_class = 100 * float(labels.diagonal().nanmean())
    title = "Mean soft label of each class in memory"
    description = f"Soft labels give the true class {true_class:.1f} % on average."
    if is_shown_by_task(observed.is_class_of_task):
        shares = {label: shares_by_task(labels, observed.is_class_of_task)}
        title = f"Mean soft label of each task's classes in memory: {_summed({label: observed})}"
        yield Picture("soft_labels", title, by_task_figure(shares, "task in the soft label (%)"), description)
    else:
        yield Picture("soft_labels", title, soft_label_figure(labels, names), description)
    yield Picture(
        "label_entropy",
        "Entropy of the soft labels",
        entropy_figure({label: entropy}, observed.num_classes),
        f"Entropy of the soft labels over training: {ends}.",
    )


def entropy_curve(run: RecordedRun) -> Curve:
    """Entropy of the soft labels as logged during training; of labels that are not learned, at task ends."""
    logged = run.curve("distill/label_entropy")
    if logged.values or run.observed is None or run.observed.label_entropy is None:
        return logged
    known = (~run.observed.label_entropy.isnan()).nonzero().flatten()
    return Curve((known + 1).to(torch.float64).tolist(), run.observed.label_entropy[known].tolist())
