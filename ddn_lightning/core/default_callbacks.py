"""The callbacks that every method brings, unless the user has given them."""

from lightning.pytorch import Callback, Trainer

from ddn_lightning.callbacks.distill_net_snapshot import DistillNetSnapshot
from ddn_lightning.callbacks.forgetting import Forgetting
from ddn_lightning.callbacks.logged_curves import LoggedCurves
from ddn_lightning.callbacks.random_state import RandomState
from ddn_lightning.callbacks.reservoir_sampling import ReservoirSampling


def missing_callbacks(trainer: Trainer, fills_memory: bool, has_terms: bool) -> list[Callback]:
    """The callbacks that a method needs and the Trainer does not have."""
    needed: list[Callback] = [Forgetting(), RandomState(), LoggedCurves()]
    if fills_memory:
        needed.insert(0, ReservoirSampling())
    if has_terms:
        needed.append(DistillNetSnapshot())
    present = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    return [callback for callback in needed if not any(isinstance(one, type(callback)) for one in present)]


def sort_memory_first(trainer: Trainer) -> None:
    """Let the memory be filled before other callbacks save or measure after a batch."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning does not declare it
    callbacks.sort(key=lambda one: not isinstance(one, ReservoirSampling))
