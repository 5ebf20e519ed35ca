"""Replay-based continual learning on PyTorch Lightning.

The public names are those of :mod:`ddn_lightning.api`, which is imported when one of them is first used: commands such
as ``ddn --help`` need neither torch nor Lightning.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddn_lightning.api import *  # noqa: F403

    __version__: str
else:

    def __getattr__(name):
        """Import a sub-module, or all public names."""
        from importlib import import_module, metadata, util

        if name == "__version__":
            return metadata.version("ddn-lightning")
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if util.find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        public = {one: value for one, value in vars(import_module(f"{__name__}.api")).items() if one[0] != "_"}
        globals().update(public, __all__=sorted(public))
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
