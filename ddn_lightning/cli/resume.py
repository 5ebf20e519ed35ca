"""Finds the checkpoint to resume from, and checks that it can be read."""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from ddn_lightning.checkpoint.files import read_checkpoint
from ddn_lightning.checkpoint.record import CHECKPOINT_KEY
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.names import plugin_key
from ddn_lightning.runs.run_folder import CHECKPOINTS, LAST


def last_checkpoint(runs: Path, name: str, is_default: bool) -> Path | None:
    """The last checkpoint of a run; for a default name, the newest among the runs with and without a number."""
    numbered = [path for path in runs.glob("*-*") if re.fullmatch(re.escape(name) + r"-\d+", path.name)]
    folders = [runs / name, *(numbered if is_default else ())]
    return _newest([path for folder in folders if (path := _last_of(folder / CHECKPOINTS)) is not None])


def _last_of(folder: Path) -> Path | None:
    """The ``last.ckpt`` of a folder; of a run killed before it was written, the newest of a ModelCheckpoint."""
    if (last := folder / LAST).is_file():
        return last
    return _newest([path for path in folder.glob("*.ckpt") if _can_resume(path)])


def _can_resume(path: Path) -> bool:
    """Whether a checkpoint is neither cut off nor of weights only."""
    try:
        return "optimizer_states" in read_checkpoint(path)
    except ConfigurationError:
        return False


def _newest(paths: list[Path]) -> Path | None:
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def default_name(config: Any) -> str:
    """The default name of a run, before its parts are built."""
    module, _, data = config.data.class_path.rpartition(".")
    method = config.model.class_path.rpartition(".")[2]
    distiller = config.model.init_args.get("distiller")
    plugin = plugin_key(distiller and distiller.class_path.rpartition(".")[2])
    return run_name(method, plugin, getattr(import_module(module), data).name, config.seed_everything, config.grow)


def run_name(method: str, plugin: str, data: str, seed: int, grows: str | None = None) -> str:
    """The default name of a run; one that grows another is named after it.

    Args:
        method: Name of the method's class.
        plugin: Key of the distiller, or ``none``.
        data: Name of the data.
        seed: Seed of the run.
        grows: Folder of the run that it grows, if any.

    >>> run_name("ER", "none", "digits", 0), run_name("ER", "ddn", "digits", 0)
    ('er-digits-seed0', 'er-ddn-digits-seed0')
    >>> run_name("ER", "none", "digits", 0, "runs/mine")
    'mine-grown'
    """
    if grows is not None:
        return f"{Path(os.path.expanduser(grows)).resolve().name}-grown"
    return "-".join([method, *([] if plugin == "none" else [plugin]), data, f"seed{seed}"]).lower()


def checkpoint_of(path: Path, method: str) -> dict[str, Any]:
    """The checkpoint of a method to resume or to evaluate."""
    if not path.exists():
        raise ConfigurationError(f"ckpt_path must be an existing file, 'last' or 'auto', got {path}")
    checkpoint = read_checkpoint(path)
    record = checkpoint.get(CHECKPOINT_KEY)
    saved_by = record.get("method") if isinstance(record, dict) else None
    if saved_by != method:
        found = "no checkpoint of ddn_lightning" if saved_by is None else f"a checkpoint of {saved_by}"
        raise ConfigurationError(f"ckpt_path must be a checkpoint of {method}, but {path} is {found}")
    return checkpoint
