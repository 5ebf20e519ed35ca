"""The command ``ddn test RUN FOLDER``: the accuracy of a trained method on images of one's own."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

import ddn_lightning
from ddn_lightning.cli.output import check_no_input, check_output, write_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.cli.predict_command import AUTO, HELP, find_device, predictions_of
from ddn_lightning.data.image_tree import class_folders, full_path, list_images
from ddn_lightning.errors import ConfigurationError, check_positive, note
from ddn_lightning.metrics.accuracy_matrix import AccuracyMatrix
from ddn_lightning.metrics.prediction_table import PredictionTable
from ddn_lightning.report.tables import NOTHING, csv_table, markdown_table, rounded

DESCRIPTION = """Measure the accuracy of a trained method on other images: ddn test runs/mine photos. The folder has a
sub-folder of images for each class, itself or in a sub-folder named test. The table has the accuracy of each class and
each task, and the average over tasks; task-IL accuracy chooses among the classes of the image's task only. Without a
folder, ddn test runs/mine evaluates on the test images of the run, and takes the options of 'ddn test --help'."""
TEST = "test"
MOST_NAMES = 6  # in a message


@dataclass(frozen=True)
class Row:
    """Accuracy on a class, a task, or all tasks, in percent."""

    task: int | None  # counted from 1; None for the average over tasks
    name: str | None  # of the class; None for all classes
    images: int
    accuracy: float
    task_il: float | None = None


def evaluate(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    check_output(settings.output)
    check_positive(batch_size=settings.batch_size)
    device = find_device(settings.device)
    method = ddn_lightning.load(settings.run).to(device)
    learned = sorted({label for task in method.task_classes or () for label in task})  # without outputs to spare
    folder, labels = _labelled_folders(settings.images, {label: method.label_names[label] for label in learned})
    files = list_images([os.path.join(folder, method.label_names[label]) for label in labels])
    check_no_input(settings.output, [file.path for file in files])
    found = predictions_of(method, [file.path for file in files], settings.batch_size)
    probabilities = torch.cat([part.probabilities for part in found])
    targets = torch.tensor(labels)[torch.tensor([file.label for file in files])]
    tasks = list(dict.fromkeys(tuple(classes) for classes in method.task_classes or ()))
    if method.task_classes and len(tasks) < len(method.task_classes):
        note("the run learned the same classes in several domains, so the images count as one task")
    rows = accuracy_rows(probabilities, targets, tasks, method.label_names)
    write_output(settings.output, {"markdown": as_markdown, "csv": as_csv}[settings.format](rows))
    return 0


def accuracy_rows(
    probabilities: Tensor, labels: Tensor, task_classes: Sequence[Sequence[int]], class_names: Sequence[str]
) -> list[Row]:
    """A row for each class, below that of its task, and the average over tasks; without those that have no images.

    Args:
        probabilities: Probability of each class (number of images, num_classes).
        labels: Class of each image.
        task_classes: Classes of each task; images count for the first task of their class.
        class_names: Name of each class.

    Example:
        >>> rows = accuracy_rows(torch.eye(2), torch.tensor([0, 0]), [[0], [1]], ("cat", "dog"))
        >>> [(row.task, row.name, row.images, row.accuracy, row.task_il) for row in rows]
        [(1, None, 2, 50.0, 100.0), (1, 'cat', 2, 50.0, None), (None, None, 2, 50.0, 100.0)]
    """
    classes = torch.arange(len(class_names))
    is_class_of_task = torch.stack([torch.isin(classes, torch.tensor(task)) for task in task_classes])
    table, matrix = PredictionTable(len(class_names)), AccuracyMatrix(is_class_of_task)
    table.update(probabilities, labels)
    task_of_class = is_class_of_task.int().argmax(dim=0)  # the first, if a class comes in several
    matrix.update(0, probabilities, labels, task_of_class[labels])
    images, correct = table.confusion.sum(dim=1), table.confusion.diagonal()
    per_task = [100 * hits[0] / matrix.total[0] for hits in (matrix.class_il_correct, matrix.task_il_correct)]
    rows = []
    for task in matrix.total[0].nonzero().flatten().tolist():
        rows.append(Row(task + 1, None, int(matrix.total[0, task]), *(float(values[task]) for values in per_task)))
        present = [label for label in task_classes[task] if images[label] and task_of_class[label] == task]
        rows += [
            Row(task + 1, class_names[label], int(images[label]), float(100 * correct[label] / images[label]))
            for label in present
        ]
    return [*rows, Row(None, None, len(labels), *(float(values.nanmean()) for values in per_task))]


def as_markdown(rows: Iterable[Row]) -> str:
    """The table for people."""
    header = ("task", "class", "images", "accuracy, %", "task-IL, %")
    cells = [
        (
            "average" if row.task is None else str(row.task),
            row.name or ("all tasks" if row.task is None else "all of the task"),
            str(row.images),
            f"{row.accuracy:.2f}",
            NOTHING if row.task_il is None else f"{row.task_il:.2f}",
        )
        for row in rows
    ]
    return markdown_table(header, cells, numbers_from=2)


def as_csv(rows: Iterable[Row]) -> str:
    """The table for programs: no class for a whole task, and no task for the average over tasks."""
    exact = [asdict(row) | {"accuracy": rounded(row.accuracy), "task_il": rounded(row.task_il)} for row in rows]
    return csv_table([{"class" if key == "name" else key: value for key, value in row.items()} for row in exact])


def _labelled_folders(images: str, names: Mapping[int, str]) -> tuple[str, list[int]]:
    """The folder with the classes' folders, and the classes that are there, of those with these names."""
    root, class_names = full_path(images), list(names.values())
    if TEST not in class_names and os.path.isdir(os.path.join(root, TEST)):
        root = os.path.join(root, TEST)
    there = class_folders(root)
    unknown = sorted(there - set(class_names))
    if unknown:
        raise ConfigurationError(
            f"the sub-folders of {root} must be named after classes of the run, {_some(class_names)}, got "
            f"{_some(unknown)}"
        )
    missing = [name for name in class_names if name not in there]
    if missing:
        note(f"{root} has no images of {len(missing)} of {len(class_names)} classes: {_some(missing)}")
    return root, [label for label, name in names.items() if name in there]


def _some(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are.

    >>> _some(["cat", "dog"]), _some(list("abcdefgh"))
    ('cat, dog', 'a, b, c, d, e, f and 2 more')
    """
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn test", description=DESCRIPTION)
    parser.add_argument("run", type=str, metavar="RUN", help="Folder of a run, or a checkpoint.")
    parser.add_argument("images", type=str, metavar="FOLDER", help="Folder with a sub-folder of images per class.")
    parser.add_argument("--format", type=Literal["markdown", "csv"], default="markdown", help="Table format.")
    parser.add_argument("-o", "--output", type=str, default="-", help="File for the table; - prints it.")
    parser.add_argument("--batch_size", type=int, default=256, help="Images per forward pass.")
    parser.add_argument("--device", type=str, default=AUTO, help=HELP)
    return parser
