"""``python -m ddn_lightning`` is the ``ddn`` command."""

from ddn_lightning.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
