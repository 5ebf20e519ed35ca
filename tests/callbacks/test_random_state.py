import random

import numpy
import torch
from lightning.pytorch import Trainer

from ddn_lightning import RandomState


def draw() -> tuple[float, float, float]:
    return random.random(), numpy.random.rand(), torch.rand(1).item()  # noqa: NPY002


def test_global_random_states_continue_when_training_starts() -> None:
    state = RandomState().state_dict()
    expected = draw()
    draw()
    resumed = RandomState()
    resumed.load_state_dict(state)
    assert draw() != expected  # not before training starts
    resumed.on_train_start(Trainer(logger=False, enable_checkpointing=False, accelerator="cpu"), None)  # type: ignore[arg-type]
    assert draw() == expected
