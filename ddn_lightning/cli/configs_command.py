"""The command ``ddn configs``."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from ddn_lightning.cli.parser import CommandParser
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce.shipped_configs import FOLDER, SUFFIX, description_of, shipped_folder, shipped_names

DESCRIPTION = """List the configuration files of the package. --config finds them by name, and merges several from left
to right: ddn fit -c base -c method/derpp -c data/cifar10 -c setting/online. A file of that name in the current folder
has priority."""


def configs(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    settings = _parser().parse_args(list(arguments))
    if settings.copy is not None:
        _copy(Path(settings.copy))
        return 0
    names = shipped_names()
    width = max(map(len, names))
    for name in names:
        text = (shipped_folder() / f"{name}{SUFFIX}").read_text(encoding="utf-8")
        print(f"{name:{width}}  {description_of(text)}".rstrip())
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="ddn configs", description=DESCRIPTION)
    parser.add_argument(
        "--copy",
        type=str,
        nargs="?",
        const=FOLDER,
        metavar="FOLDER",
        help=f"Copy the files into a new folder, to change them. Default: {FOLDER}.",
    )
    return parser


def _copy(folder: Path) -> None:
    if folder.exists():
        raise ConfigurationError(f"copy must be a new folder, but {folder} exists already")
    shutil.copytree(shipped_folder(), folder, copy_function=shutil.copyfile)
    print(f"Copied to {folder}/; use them with --config {folder / 'quickstart.yaml'}")
