"""A checkpoint resumes at the right batch, whichever hook saved it and whatever stopped the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import build
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from tiny import TinySequence

from ddn_lightning import ER, ConfigurationError, DataDistillNet, ReplayMethod

HOOKS = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_train_epoch_end",
]


class SaveIn(Checkpoint):
    """Saves whenever a hook is called."""

    def __init__(self, folder: Path, hook: str) -> None:
        self.paths: list[Path] = []

        def save(trainer: Trainer, *_: Any) -> None:
            self.paths.append(folder / f"{hook}{len(self.paths)}.ckpt")
            trainer.save_checkpoint(self.paths[-1])

        setattr(self, hook, save)


def sequence() -> TinySequence:
    return TinySequence(epochs_per_task=2, batch_size=10, evaluate_every_n_epochs=1)  # 3 steps an epoch


def make() -> ReplayMethod:
    return build(ER, DataDistillNet, momentum=0.9)


def weights(method: ReplayMethod) -> list[torch.Tensor]:
    return [*method.parameters(), method.memory.labels, method.accuracy_matrix]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_resume_continues_after_the_last_batch_before_the_hook(
    hook: str, fit: Callable[..., ReplayMethod], tmp_path: Path
) -> None:
    saving = SaveIn(tmp_path, hook)
    expected = fit(make, sequence(), callbacks=[saving], enable_checkpointing=True)
    for path in saving.paths[:: max(1, len(saving.paths) // 3)]:
        resumed = fit(make, sequence(), ckpt_path=path, seed=99)
        assert resumed.trainer.global_step == 18, path.name
        for first, second in zip(weights(expected), weights(resumed), strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True, msg=path.name)


def test_a_checkpoint_saved_after_max_steps_resumes_in_its_epoch(
    make_trainer: Callable[..., Trainer], fit: Callable[..., ReplayMethod]
) -> None:
    """Lightning counts the epoch that was cut short as done."""
    expected = fit(make, sequence())
    stopped = fit(make, sequence(), max_steps=8)
    stopped.trainer.save_checkpoint("stopped.ckpt")
    resumed = fit(make, sequence(), ckpt_path=Path("stopped.ckpt"))
    assert resumed.trainer.global_step == 18
    for first, second in zip(weights(expected), weights(resumed), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_of_version_0_1_without_its_epoch_is_refused(fit: Callable[..., ReplayMethod]) -> None:
    """After a resume at an epoch's end, 0.1 did not count the next epoch as begun."""
    fit(make, sequence(), max_steps=8).trainer.save_checkpoint("stopped.ckpt")
    checkpoint = torch.load("stopped.ckpt", weights_only=True)
    del checkpoint["ddn_lightning"]["format"], checkpoint["ddn_lightning"]["contents"]
    for counters in ("total", "current"):
        checkpoint["loops"]["fit_loop"]["epoch_progress"][counters]["started"] = 2  # as many as processed
    torch.save(checkpoint, "old.ckpt")
    with pytest.raises(ConfigurationError, match="version 0.1 does not record its epoch"):
        fit(make, sequence(), ckpt_path=Path("old.ckpt"))
