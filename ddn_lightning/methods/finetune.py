"""Fine-tuning: no memory at all, the lower bound."""

from ddn_lightning.core.replay_method import ReplayMethod
from ddn_lightning.distill.learner import Facts
from ddn_lightning.distill.replay_loss import ReplayLoss
from ddn_lightning.samples import Samples


class Finetune(ReplayMethod):
    """Trains on each task without replay: the forgetting that other methods reduce.

    Args:
        **kwargs: Arguments of :class:`ReplayMethod`; those about memory have no effect.
    """

    facts = Facts("finetune", "fine-tuning", "lower bound", "no memory", "no replayed batch")

    memory_draws = 0
    rehearses_labels = False

    def loss(self, current: Samples, *memory: Samples) -> ReplayLoss:
        """The loss on the incoming batch."""
        return self.current_loss(current)
