"""Load a trained method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddn_lightning.core.replay_method import ReplayMethod


def load(path: str | Path, *, classes: Sequence[type] = (), **kwargs: Any) -> ReplayMethod:
    """Load a trained method with its backbone, transform and class names, ready to predict.

    Nothing in the file is executed and nothing is imported for it. A checkpoint names the classes of its method and
    backbone: each must be a public class of this package, a class of a module that is already imported, or one of
    ``classes``. Files and sites of pretrained weights are not opened. A file that is damaged, or whose weights have
    other shapes than its arguments say, is refused before memory is allocated for a network.

    Args:
        path: Run folder or checkpoint.
        classes: Further classes that the checkpoint may name, such as ``[MyNet]``.
        **kwargs: Arguments of the method that override those in the checkpoint, such as ``backbone``.

    Example:
        >>> load("runs/mine").predict("photos/").names  # doctest: +SKIP
        ['cat', 'ship']
    """
    method = ReplayMethod.load_from_checkpoint(path, classes=classes, **kwargs)
    method.remember_modes()
    return method.eval()
