"""The command ``ddn predict``, and the device of commands that predict."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import ddn_lightning
from ddn_lightning.cli.output import STANDARD_OUTPUT, check_no_input, check_output, write_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.data.decoding import show_progress
from ddn_lightning.data.image_tree import images_below
from ddn_lightning.deploy.predict import Predictions
from ddn_lightning.deploy.predict import predict as predict_images
from ddn_lightning.distill.learner import Predicting
from ddn_lightning.errors import ConfigurationError, check_positive
from ddn_lightning.report.tables import csv_table

DESCRIPTION = """Classify images by a trained method: ddn predict runs/mine photos/ -o classes.csv. One line per image:
the file, its most probable class and the probability; with --top 3 the next ones too."""


def predict(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    _check_table(settings.output)
    check_positive(top=settings.top, batch_size=settings.batch_size)
    device = find_device(settings.device)
    files = _files(Path(settings.images))
    check_no_input(settings.output, files)
    method = ddn_lightning.load(settings.run).to(device)
    found = list(predictions_of(method, files, settings.batch_size))
    write_output(settings.output, as_csv(found, files, settings.top))
    return 0


def predictions_of(method: Predicting, files: Sequence[str], batch_size: int) -> Iterable[Predictions]:
    """The predictions for image files, a batch at a time, with a progress bar."""
    parts = [files[start : start + batch_size] for start in range(0, len(files), batch_size)]
    return (predict_images(method, part) for part in show_progress(parts, "predicting", len(parts)))


def as_csv(found: Sequence[Predictions], files: Sequence[str], top: int) -> str:
    """File, class and probability, and as many more classes as asked for."""
    records = []
    for file, row in zip(files, (row for part in found for row in part.top(top)), strict=True):
        record = {"file": file}
        for place, (name, value) in enumerate(row):
            end = f"_{place + 1}" if place else ""
            record |= {f"class{end}": name, f"probability{end}": f"{value:.6f}"}
        records.append(record)
    return csv_table(records)


def _check_table(output: str) -> None:
    check_output(output)
    is_file = output != STANDARD_OUTPUT and (os.path.isfile(output) or not os.path.exists(output))
    if is_file and not output.lower().endswith(".csv"):
        raise ConfigurationError(f"output must be a file that ends in .csv, got {output}")


def _files(images: Path) -> list[str]:
    """The image itself, or the images in a folder and in the folders within it."""
    if not images.exists():
        raise ConfigurationError(f"images must be a file or folder, got {images}: not there")
    return [str(images)] if images.is_file() else images_below(str(images))


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn predict", description=DESCRIPTION)
    parser.add_argument("run", type=str, metavar="RUN", help="Folder of a run, or a checkpoint.")
    parser.add_argument("images", type=str, metavar="IMAGES", help="An image, or a folder with images.")
    parser.add_argument("-o", "--output", type=str, default="-", help="CSV file; - prints it.")
    parser.add_argument("--top", type=int, default=1, help="Classes per image, the most probable first.")
    parser.add_argument("--batch_size", type=int, default=256, help="Images per forward pass.")
    parser.add_argument("--device", type=str, default=AUTO, help=HELP)
    return parser


AUTO = "auto"
HELP = "For example cuda:0; auto uses a GPU if present."


def find_device(name: str) -> torch.device:
    """The device of this name, if this machine has it; ``auto`` for a GPU if there is one."""
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"device must be one of this machine's, such as cpu, got {name}: {reason}") from error
    return device
