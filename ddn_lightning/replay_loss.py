"""What a replay method minimises in a step, in parts."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class ReplayLoss:
    """What a step minimises, split so that soft labels can take part in it.

    Args:
        other: Every term but ``rehearsal``.
        current_logits: Outputs for the incoming batch.
        rehearsal: The loss on the *labels* of replayed samples; ``None`` if there is none.
        memory_logits: The outputs that ``rehearsal`` was computed from, for the last draw from memory.
        rehearsal_weight: Coefficient of the mean cross-entropy in ``rehearsal``; soft labels in its place get the same.
        deferred_terms: More terms, each on a batch of its own. They are computed once the rest is differentiated, so
            that their graphs take no memory beside it.
    """

    other: Tensor
    current_logits: Tensor
    rehearsal: Tensor | None = None
    memory_logits: Tensor | None = None
    rehearsal_weight: float = 1.0
    deferred_terms: tuple[Callable[[], Tensor], ...] = ()

    @property
    def total(self) -> Tensor:
        """The sum of all terms but the deferred ones."""
        return self.other if self.rehearsal is None else self.other + self.rehearsal

    def with_term(self, term: Callable[[], Tensor]) -> "ReplayLoss":
        """The loss with one more deferred term."""
        return replace(self, deferred_terms=(*self.deferred_terms, term))
