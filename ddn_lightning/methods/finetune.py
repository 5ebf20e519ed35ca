"""Fine-tuning: no memory at all, the lower bound."""

from ddn_lightning.methods.base import ReplayMethod


class Finetune(ReplayMethod):
    """Trains on each task as it comes and rehearses nothing: what forgetting looks like when nothing is done about it.

    Args:
        **kwargs: Arguments of :class:`ReplayMethod`; those about memory have no effect.
    """

    memory_draws = 0
