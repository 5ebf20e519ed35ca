"""The parser of ``ddn fit``, ``validate`` and ``test``: Lightning's with shorter errors."""

import locale
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import (  # type: ignore[attr-defined]  # ActionConfigFile is not in its __all__
    ActionConfigFile,
    Namespace,
    get_loader,
    set_loader,
)
from lightning.pytorch.cli import LightningArgumentParser

from ddn_lightning.cli.completion import COMPLETION
from ddn_lightning.cli.parser import ConfigFile, readable, similar_option
from ddn_lightning.errors import ConfigurationError, printable
from ddn_lightning.reproduce.shipped_configs import STANDARD_INPUT
from ddn_lightning.runs.config import check_extent, read_settings

PARSER_MODE = "limited_yaml"  # the name of our loader in jsonargparse


class DDNParser(LightningArgumentParser):
    """Lightning's parser with shorter errors, which list the choices for an unknown class name.

    It refuses invalid configuration files and those that would take forever to load.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        set_loader(PARSER_MODE, _load, exceptions=(yaml.YAMLError,))
        super().__init__(*args, **{**kwargs, "parser_mode": PARSER_MODE, "allow_abbrev": False})

    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        """Add an option; that of configuration files also takes names."""
        if kwargs.get("action") is ActionConfigFile:
            kwargs |= {
                "action": ConfigFile,
                "help": "Path to a configuration file, or a name that 'ddn configs' lists.",
            }
        return super().add_argument(*args, **kwargs)

    def parse_args(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse; a line to complete is left to the parser of its command, as argcomplete cannot nest parsers."""
        commands = getattr(self, "_subcommands_action", None)
        if COMPLETION in os.environ and commands:
            return commands.choices[args[0]].parse_args([])
        return super().parse_args(args, *rest, **kwargs)

    def parse_path(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Check and parse a configuration file."""
        if path != STANDARD_INPUT:
            try:
                read_settings(Path(path))
                _check_locale(Path(path))
            except ConfigurationError as error:
                self.error(str(error), error)
        parsed: Namespace = super().parse_path(path, *args, **kwargs)
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        print(f"error: {printable(readable(message))}{similar_option(message, self)}", file=sys.stderr)
        print("tip: 'ddn fit --help' lists all options, 'ddn fit --model.help ER' those of a method", file=sys.stderr)
        raise SystemExit(2)


def _load(text: str) -> Any:
    """Jsonargparse's YAML loader, with a limit on the size."""
    check_extent(text)
    return get_loader("yaml")(text)


def _check_locale(path: Path) -> None:
    """Raise unless a file in UTF-8 reads the same in the locale's encoding, which jsonargparse uses."""
    encoding, content = locale.getpreferredencoding(False), path.read_bytes()
    if content.decode(encoding, errors="replace") != content.decode("utf-8", errors="replace"):
        raise ConfigurationError(
            f"{path} must be readable in this locale, whose encoding is {encoding}: set PYTHONUTF8=1"
        )
