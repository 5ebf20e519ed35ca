"""The command line: ``ddn fit``, ``validate``, ``test``, ``report``, ``compare``, ``reproduce`` and ``bench``."""

from ddn_lightning.cli.ddn import main

__all__ = ["main"]
