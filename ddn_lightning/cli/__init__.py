"""The command line, ``ddn``: its commands are in ``commands.py``."""

from ddn_lightning.cli.ddn import main

__all__ = ["main"]
