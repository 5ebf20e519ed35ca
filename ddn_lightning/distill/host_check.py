"""Whether a method's loss has labels of memory that a distiller can soften, found out before training."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ddn_lightning.distributed import local_share
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.replay_loss import ReplayLoss

if TYPE_CHECKING:
    from ddn_lightning.methods.replay_method import ReplayMethod


def rehearsed_logits(method: "ReplayMethod", loss: ReplayLoss) -> Tensor:
    """The outputs for what is replayed. Refuses a method whose loss has no labels of memory to soften.

    Args:
        method: The method.
        loss: What it minimises in a step that replays something.
    """
    if loss.rehearsal is None or loss.memory_logits is None:
        raise ConfigurationError(
            f"{type(method).__name__} cannot take a distiller: its loss has no labels of memory to soften (it "
            "returns a ReplayLoss without rehearsal and memory_logits)"
        )
    return loss.memory_logits


def check_host(method: "ReplayMethod") -> None:
    """Refuse such a method before it has trained, though it may replay in later tasks only.

    Its loss is tried out on a copy that is thrown away, in evaluation mode, with two training samples as the incoming
    batch and, at first, as the memory. A loss that cannot be computed so may still be in order: the first step that
    replays something will tell.

    Args:
        method: A method that has a distiller, about to be trained.
    """
    on_device = [method.device] if method.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(on_device), method.trainer.precision_plugin.train_step_context():
            loss = _tried_loss(method)
    except Exception:  # whatever a user's loss may need that is only there in training
        return
    rehearsed_logits(method, loss)


def _tried_loss(method: "ReplayMethod") -> ReplayLoss:
    trial = copy.deepcopy(method).eval()
    trial.trainer = method.trainer
    trial.task = max(method.task, method.replay_from_task)
    vars(trial).update(log=_log_nothing, log_dict=_log_nothing)
    data = method.sequence.train_set
    whole = torch.arange(2 * method.trainer.world_size) % len(data)  # two for each rank
    trial.memory.to(method.device)
    if not len(trial.memory):
        logits = torch.zeros(len(whole), method.num_classes, device=method.device) if method.stores_logits else None
        trial.memory.add(replace(data[whole].to(method.device), logits=logits), trial)
    share = replace(data[local_share(whole)].to(method.device), global_size=len(whole))
    drawn = [trial.draw_memory() for _ in range(trial.memory_draws)]
    return trial.loss(trial.augment(share), *[draw for draw in drawn if draw is not None])


def _log_nothing(*_: object, **__: object) -> None:
    """In place of Lightning's, which refuses before training."""
