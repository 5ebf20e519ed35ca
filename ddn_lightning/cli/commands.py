"""The commands of ``ddn``, with one line each."""

from collections.abc import Callable, Sequence

from ddn_lightning.cli.compare_command import compare
from ddn_lightning.cli.configs_command import configs
from ddn_lightning.cli.export_command import export
from ddn_lightning.cli.predict_command import predict
from ddn_lightning.cli.report_command import report
from ddn_lightning.cli.reproduce_command import reproduce
from ddn_lightning.cli.tune_command import tune
from ddn_lightning.errors import ConfigurationError, did_you_mean

TRAINER_COMMANDS = {  # those of LightningCLI
    "fit": "Train a method on a task sequence.",
    "validate": "Evaluate a checkpoint on the tasks it has seen.",
    "test": "Evaluate a run on all tasks or, with RUN FOLDER, on other images.",
}
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "predict": (predict, "Classify images with a trained run."),
    "export": (export, "Write a trained run to an ONNX or .pt2 file."),
    "report": (report, "Make an HTML page of runs."),
    "compare": (compare, "Compare runs, paired by seed, with confidence intervals."),
    "reproduce": (reproduce, "Run a grid of settings and seeds, and print its table."),
    "tune": (tune, "Search hyper-parameters on validation images."),
    "configs": (configs, "List or copy the configuration files of the package."),
}
LINES = TRAINER_COMMANDS | {name: line for name, (_, line) in COMMANDS.items()}
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
