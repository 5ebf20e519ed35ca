"""What a method keeps between steps, in bytes: the budget that methods should be compared at."""

from torch import Tensor

from ddn_lightning.distill.learner import Watched
from ddn_lightning.memory.memory import Memory
from ddn_lightning.metrics.accuracy_matrix import MATRICES

PREDICTING = ("backbone.", "head.")  # needed by every method
RECORDS = (*MATRICES, "is_seen_class")
RANDOM_STATE = "generator"  # of a memory, 5 kB for each


def stored_bytes(method: Watched) -> dict[str, int]:
    """Bytes of the samples, and of everything else besides the network that predicts.

    ``samples`` has images or features, labels, tasks and outputs, or the factors that images are made of, as far as the
    memory is filled. ``others`` has further networks, importances, class means, and the parameters of a distiller.
    Optimizers and random states do not count.
    """
    kept = method.stored_samples
    if isinstance(kept, Memory):
        samples = _size({name: value for name, value in kept.state_dict().items() if name != RANDOM_STATE})
    else:
        samples = 0 if kept is None or not len(kept) else _size(vars(kept.samples))
    named = [*method.named_parameters(), *method.named_buffers()]
    others = [value for name, value in named if not name.startswith(PREDICTING) and name not in RECORDS]
    return {"samples": samples, "others": _size(others)}


def _size(values: object) -> int:
    if isinstance(values, Tensor):
        return values.nbytes
    if isinstance(values, dict):
        return _size(list(values.values()))
    return sum(map(_size, values)) if isinstance(values, list | tuple) else 0
