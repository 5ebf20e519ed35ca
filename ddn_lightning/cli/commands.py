"""The commands of ``ddn``, with one line each."""

from collections.abc import Callable, Sequence
from importlib import import_module

from ddn_lightning.errors import ConfigurationError, did_you_mean

TRAINER_COMMANDS = {  # those of LightningCLI
    "fit": "Train a method on a task sequence.",
    "validate": "Evaluate a checkpoint on the tasks it has seen.",
    "test": "Evaluate a run on all tasks or, with RUN FOLDER, on other images.",
}
COMMANDS = {  # the function ``report`` of ``report_command.py``, and so on; imported when it is called
    "predict": "Classify images with a trained run.",
    "export": "Write a trained run to an ONNX or .pt2 file.",
    "report": "Make an HTML page of runs.",
    "compare": "Compare runs, paired by seed, with confidence intervals.",
    "reproduce": "Run a grid of settings and seeds, and print its table.",
    "tune": "Search hyper-parameters on validation images.",
    "configs": "List or copy the configuration files of the package.",
}
LINES = TRAINER_COMMANDS | COMMANDS
HEADER = """usage: ddn COMMAND [OPTIONS]

Replay-based continual learning on PyTorch Lightning.

commands:
"""
FOOTER = """
ddn COMMAND --help                      options of a command
ddn fit --model.help ER                 options of a method; also --data.help, --model.distiller.help, ...
ddn fit -c quickstart                   train with a configuration file, or one that 'ddn configs' lists
ddn fit -c quickstart --print_config    show the complete configuration instead
ddn predict RUN IMAGES --import MODULE  find own classes in a module; also in export, test and validate
ddn --version                           show the version
"""


def command(name: str) -> Callable[[Sequence[str]], int]:
    """The function of one of the :data:`COMMANDS`."""
    function: Callable[[Sequence[str]], int] = getattr(import_module(f"ddn_lightning.cli.{name}_command"), name)
    return function


def overview() -> str:
    """The text of ``ddn --help``."""
    width = max(map(len, LINES))
    return HEADER + "".join(f"  {name:{width}}  {line}\n" for name, line in LINES.items()) + FOOTER


def check_command(word: str) -> None:
    """Raise unless a word is a command or an option."""
    if word not in LINES and not word.startswith("-"):
        raise ConfigurationError(f"command must be one of {', '.join(LINES)}, got {word}{did_you_mean(word, LINES)}")


def check_values(words: Sequence[str]) -> None:
    """Refuse ``--option=--``: argparse drops this value, and so gives an empty one."""
    for word in words:
        option, _, value = word.partition("=")
        if option.startswith("-") and value == "--":
            raise ConfigurationError(f"{option.lstrip('-')} must have a value, got --")
