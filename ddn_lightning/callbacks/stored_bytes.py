"""What a method keeps between steps, in bytes: the budget that methods should be compared at."""

from ddn_lightning.distill.learner import Watched
from ddn_lightning.memory.memory import Memory, size_in_bytes
from ddn_lightning.metrics.accuracy_matrix import MATRICES

PREDICTING = ("backbone.", "head.")  # needed by every method
RECORDS = (*MATRICES, "is_seen_class")
RANDOM_STATE = "generator"  # of a memory, 5 kB for each


def stored_bytes(method: Watched) -> dict[str, int]:
    """Bytes of the samples, and of everything else except the network that predicts.

    ``samples`` has images or features, labels, tasks and outputs, or the factors that images are made of, as far as the
    memory is filled. ``others`` has further networks, importances, class means, and the parameters of a distiller.
    Optimizers and random states do not count.
    """
    kept = method.stored_samples
    if isinstance(kept, Memory):
        samples = size_in_bytes({name: value for name, value in kept.state_dict().items() if name != RANDOM_STATE})
    else:
        samples = 0 if kept is None or not len(kept) else size_in_bytes(vars(kept.samples))
    return {"samples": samples, "others": other_bytes(method)}


def other_bytes(method: Watched) -> int:
    """Bytes of everything except the samples and the network that predicts."""
    named = [*method.named_parameters(), *method.named_buffers()]
    return size_in_bytes([value for name, value in named if not name.startswith(PREDICTING) and name not in RECORDS])
