"""The contract of a resume that is exact to the last bit: what has state is a *part*, and a method lists its parts.

1. A part has ``state_dict()``: everything that a resumed run continues with, as tensors and plain values, so that it
   loads with ``weights_only=True``. It is the same on every rank, and a checkpoint has that of rank 0.
2. It has ``load_state_dict(state)``, for any number of ranks and any device. A state of another class or size is
   refused before anything changes.
3. It is reset at the start of each fit, in ``setup`` or ``begin_fit``, before a state is loaded: nothing of an
   earlier fit remains.
4. Everything random is drawn from a named stream of :class:`RandomStreams`, which is a part, or from the generator of
   a part. Global random states are saved by the callback :class:`RandomState`, for code that is not ours.
5. Work between tasks may run twice until :class:`Progress` counts it: a run that is killed within it resumes from the
   state before it. It therefore depends on nothing but parts and weights.
6. No part writes to another one, and no callback or data module to any: each is changed by its own methods only.

Weights, buffers and modules are saved by Lightning. ``progress`` is among them, as extra state of the method, since
spawned processes return only weights; so are running statistics, and calibrated ones have an entry of their own. The
position in an epoch is that of Lightning's loops, normalised by :func:`~ddn_lightning.checkpoint.loops.settle`. A
user's own memory is a part by the same contract, and so is a term of the loss, by ``training_state`` and
``load_training_state``.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from ddn_lightning.checkpoint import checks

STREAMS, MEMORY = "streams", "memory"  # names of parts


class Part(Protocol):
    """Something with state that a resumed run continues with. It is also reset, with arguments of its own."""

    def state_dict(self) -> dict[str, Any]:
        """The state, which loads with ``weights_only=True``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""


def save_parts(parts: Mapping[str, Part]) -> dict[str, dict[str, Any]]:
    """The states of all parts, by name."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_parts(parts: Mapping[str, Part], saved: object) -> None:
    """Restore all parts, in their order; refuse a checkpoint that lacks one."""
    states = checks.mapping("parts", saved, parts)
    for name, part in parts.items():
        part.load_state_dict(checks.mapping(name, states[name]))
