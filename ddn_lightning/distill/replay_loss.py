"""The loss of one training step, split into its terms."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ddn_lightning.samples import Samples


@dataclass(frozen=True)
class ReplayLoss:
    """The loss of one training step, split so that a distiller can add to or replace the rehearsal term.

    Args:
        other: All terms except ``rehearsal``.
        current_logits: Logits of the incoming batch.
        rehearsal: The loss on the *labels* of the replayed samples, if the method has such a term.
        memory_logits: The logits that ``rehearsal`` was computed from.
        rehearsal_weight: Coefficient of the mean cross-entropy in ``rehearsal``; a soft-label loss that replaces it is
            scaled alike.
        deferred_terms: Further terms, each on its own batch. They are computed and differentiated one by one after the
            rest, so that only one graph is in memory at a time.
        rehearsed: The samples that ``memory_logits`` belong to; by default the last draw.
    """

    other: Tensor
    current_logits: Tensor
    rehearsal: Tensor | None = None
    memory_logits: Tensor | None = None
    rehearsal_weight: float = 1.0
    deferred_terms: tuple[Callable[[], Tensor], ...] = ()
    rehearsed: Samples | None = None

    @property
    def total(self) -> Tensor:
        """The sum of all terms except the deferred ones."""
        return self.other if self.rehearsal is None else self.other + self.rehearsal

    def with_term(self, term: Callable[[], Tensor]) -> "ReplayLoss":
        """The loss with one more deferred term."""
        return replace(self, deferred_terms=(*self.deferred_terms, term))
