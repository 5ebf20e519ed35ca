"""The parser of ``ddn fit``, ``validate`` and ``test``: short messages, and no file that it would wait for."""

import locale
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser

from ddn_lightning.cli.messages import readable
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.runs.safe_yaml import check_extent, read_settings

PARSER_MODE = "limited_yaml"  # jsonargparse's name for a way of loading values
STANDARD_INPUT = "-"


class DDNParser(LightningArgumentParser):
    """Lightning's parser with shorter messages, which list the choices where a class name is not one of them.

    Refuses configuration files that are none, and those that would take forever to load.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        set_loader(PARSER_MODE, _load, exceptions=(yaml.YAMLError,))
        super().__init__(*args, **{**kwargs, "parser_mode": PARSER_MODE})

    def parse_path(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Parse a configuration file, once it has proved to be one."""
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
        print(f"error: {readable(message)}", file=sys.stderr)
        print("tip: 'ddn fit --help' lists all options, 'ddn fit --model.help ER' those of a method", file=sys.stderr)
        raise SystemExit(2)


def _load(text: str) -> Any:
    """A value as jsonargparse loads it, unless it stands for too much."""
    check_extent(text)
    return get_loader("yaml")(text)


def _check_locale(path: Path) -> None:
    """Jsonargparse reads files as the locale says."""
    encoding = locale.getpreferredencoding(False)
    try:
        path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} must be readable in this locale, whose encoding is {encoding}: set PYTHONUTF8=1"
        ) from error
