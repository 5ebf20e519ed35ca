"""The parser of the commands that are not LightningCLI's."""

from typing import NoReturn

from jsonargparse import ArgumentParser

from ddn_lightning.cli.messages import readable
from ddn_lightning.errors import ConfigurationError


class CommandParser(ArgumentParser):
    """Tells a mistake in one line, by raising it."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a :class:`ConfigurationError`."""
        raise ConfigurationError(f"{readable(message)} (see '{self.prog} --help')") from ex
