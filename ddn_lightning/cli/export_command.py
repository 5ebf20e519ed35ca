"""The command ``ddn export``."""

import os
from collections.abc import Sequence
from pathlib import Path

import ddn_lightning
from ddn_lightning.cli.output import check_output
from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.deploy.export import format_of

DESCRIPTION = """Write a trained method as a file that predicts without this package: ddn export runs/mine -o
model.onnx. The file takes raw uint8 images (batch, channels, height, width) in batches of any size and returns the
probability of each class, as 'ddn predict' does: normalisation, BatchNorm statistics and the method's own scores are
inside, class names and image shape in its metadata. The command runs the file on random images and fails if it differs
from the method by more than 1e-5."""


def export(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    check_output(settings.output)
    format_of(Path(settings.output))
    method = ddn_lightning.load(settings.run)
    difference = method.export(os.path.realpath(settings.output))
    shape = ", ".join(map(str, method.image_shape or ()))
    print(
        f"{settings.output}: uint8 images (batch, {shape}) to probabilities of {method.num_classes} classes; "
        f"largest difference to torch {difference:.1e}"
    )
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn export", description=DESCRIPTION)
    parser.add_argument("run", type=str, metavar="RUN", help="Folder of a run, or a checkpoint.")
    parser.add_argument(
        "-o", "--output", type=str, required=True, help="ONNX file (.onnx), or one for torch.export.load (.pt2)."
    )
    return parser
