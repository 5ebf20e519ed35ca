"""The streams of a sequence that follows another."""

from typing import Any

from ddn_lightning.data.plan import Plan
from ddn_lightning.data.streams.streams import NO_STREAM, Streams


class GrownStreams(Streams):
    """The streams of two sequences, each of which changes its own samples.

    Args:
        first: Those of the first sequence.
        more: Those of the one that follows.
        has_old_classes: Whether a class of the first sequence comes again.
    """

    def __init__(self, first: Streams, more: Streams, has_old_classes: bool) -> None:
        self.parts = first, more
        self.has_old_classes = has_old_classes
        self.streams = (*first, *more)
        self.seed = first.seed
        self.has_domains = first.has_domains or more.has_domains

    @property
    def has_disjoint_classes(self) -> bool:
        """Whether each class comes in a single task."""
        return not self.has_old_classes and all(part.has_disjoint_classes for part in self.parts)

    def resume_state(self, plan: Plan | None) -> dict[str, Any]:
        """What a resumed run must share, of both parts."""
        if not self.streams:
            return NO_STREAM
        first, more = (part.resume_state(plan) for part in self.parts)
        return {name: [first[name], more[name]] for name in NO_STREAM} | {"plan": plan and plan.checksum}
