"""The command line, ``ddn``: its commands are in ``commands.py``."""


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        from ddn_lightning.cli.ddn import main as run  # here: Ctrl-C while this is imported must print no traceback
    except KeyboardInterrupt:
        return 130
    return run(args)


__all__ = ["main"]
