"""A checkpoint resumes at the right batch, whichever hook saved it and whatever stopped the run."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import build
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from tiny import TinySequence
from torch import nn

from ddn_lightning import ER, DataDistillNet, ReplayMethod, ResNet18, load
from ddn_lightning.callbacks.task_callback import TaskCallback

HOOKS = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_train_epoch_end",
]


class UsersSaveIn(Callback):
    """Saves whenever a hook is called."""

    def __init__(self, folder: Path, hook: str) -> None:
        self.paths: list[Path] = []

        def save(trainer: Trainer, *_: Any) -> None:
            self.paths.append(folder / f"{hook}{len(self.paths)}.ckpt")
            trainer.save_checkpoint(self.paths[-1])

        setattr(self, hook, save)


class SaveIn(UsersSaveIn, Checkpoint):
    """The same as a callback that Lightning calls after all others."""


def sequence() -> TinySequence:
    return TinySequence(epochs_per_task=2, batch_size=10, evaluate_every_n_epochs=1)  # 3 steps an epoch


def make() -> ReplayMethod:
    return build(ER, DataDistillNet, momentum=0.9)


def weights(method: ReplayMethod) -> list[torch.Tensor]:
    return [*method.parameters(), method.memory.labels, method.accuracy_matrix]


@pytest.mark.parametrize(("kind", "hook"), [*((SaveIn, hook) for hook in HOOKS), (UsersSaveIn, "on_train_batch_end")])
def test_a_resume_continues_after_the_last_batch_before_the_hook(
    kind: type[UsersSaveIn], hook: str, fit: Callable[..., ReplayMethod], tmp_path: Path
) -> None:
    saving = kind(tmp_path, hook)
    expected = fit(make, sequence(), callbacks=[saving], enable_checkpointing=kind is SaveIn)
    for path in saving.paths[:: 5 if len(saving.paths) > 6 else 2]:  # also at an epoch's first, middle and last batch
        resumed = fit(make, sequence(), ckpt_path=path, seed=99)
        assert resumed.trainer.global_step == 18, path.name
        for first, second in zip(weights(expected), weights(resumed), strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True, msg=path.name)


@pytest.mark.parametrize("hook", ["on_task_end", "after_task_end"])
def test_a_checkpoint_saved_while_a_task_ends_says_that_it_is_not_exact(
    hook: str, fit: Callable[..., ReplayMethod], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the resume the task ends once more."""

    class Saves(UsersSaveIn, TaskCallback):
        """A user's."""

    saving = Saves(tmp_path, hook)
    fit(make, sequence(), callbacks=[saving])
    capsys.readouterr()
    resumed = fit(make, sequence(), ckpt_path=saving.paths[0])
    assert resumed.trainer.global_step == 18
    assert "the run goes on, but not bit for bit" in capsys.readouterr().err


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


@pytest.mark.parametrize(("evaluation", "max_steps"), [("validate", 8), ("test", 9)])
def test_a_checkpoint_saved_after_an_evaluation_resumes(
    evaluation: str, max_steps: int, fit: Callable[..., ReplayMethod]
) -> None:
    """Lightning forgets the loader of a fit, and its position, when it attaches that of the evaluation."""
    expected = fit(make, sequence())
    stopped = fit(make, sequence(), max_steps=max_steps)
    getattr(stopped.trainer, evaluation)(stopped, stopped.trainer.datamodule, verbose=False)
    stopped.trainer.save_checkpoint("stopped.ckpt")
    resumed = fit(make, sequence(), ckpt_path=Path("stopped.ckpt"))
    assert resumed.trainer.global_step == 18
    for first, second in zip(weights(expected), weights(resumed), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # it is resumed without ModelCheckpoint
@pytest.mark.filterwarnings("ignore:You have overridden `on_before_batch_transfer`")
@pytest.mark.parametrize("where", ["transfer", "step", "memory"])
@pytest.mark.parametrize("step", [3, 5])  # the first and the last of an epoch
def test_a_step_that_fails_is_taken_again_and_the_resume_says_that_it_is_not_exact(
    where: str, step: int, fit: Callable[..., ReplayMethod], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = itertools.count()

    def fail(*args: Any) -> Any:
        if next(calls) == step:
            raise RuntimeError("out of memory")
        return args[0]

    class Fails(Callback):
        def on_before_optimizer_step(self, *_: Any) -> None:
            fail(None)

    def failing() -> ReplayMethod:
        method = make()
        if where == "transfer":
            method.on_before_batch_transfer = lambda batch, _: fail(batch)  # type: ignore[method-assign]  # of one object
        elif where == "memory":
            add = method.memory.add
            method.memory.add = lambda *args: fail(add(*args))  # type: ignore[method-assign]  # likewise
        return method

    saving = ModelCheckpoint(tmp_path, filename="torn", every_n_epochs=100, save_on_exception=True)
    callbacks = [saving, Fails()] if where == "step" else [saving]
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(failing, sequence(), callbacks=callbacks, enable_checkpointing=True)
    capsys.readouterr()
    resumed = fit(make, sequence(), ckpt_path=tmp_path / "torn.ckpt")
    assert resumed.trainer.global_step == 18
    assert ("saved within a step" in capsys.readouterr().err) == (where != "transfer")  # before which nothing moves


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_method_that_was_stopped_within_an_evaluation_goes_on_in_training_mode(
    error: type[BaseException], make_trainer: Callable[..., Trainer], fit: Callable[..., ReplayMethod], tmp_path: Path
) -> None:
    class Fails(Callback):
        def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 6:
                raise error

    def normalised() -> ReplayMethod:
        """Has BatchNorm whose first layer the user holds in evaluation mode."""
        method = build(ER, backbone=ResNet18(in_channels=1, width=4))
        next(layer for layer in method.modules() if isinstance(layer, nn.BatchNorm2d)).eval()
        return method

    expected = fit(normalised, sequence())
    seed_everything(0, verbose=False)
    method, saving = normalised(), SaveIn(tmp_path, "on_train_batch_end")
    with contextlib.suppress(SystemExit, RuntimeError, KeyboardInterrupt):
        make_trainer(callbacks=[Fails(), saving], enable_checkpointing=True).fit(method, sequence())
    assert not method.training
    make_trainer().fit(method, sequence(), ckpt_path=saving.paths[-1])
    assert method.trainer.global_step == 18
    for first, second in zip(weights(expected), weights(method), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


def test_a_loaded_method_resumes_in_training_mode(
    fit: Callable[..., ReplayMethod], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = fit(make, sequence())
    fit(make, sequence(), max_steps=8).trainer.save_checkpoint("stopped.ckpt")
    resumed = fit(lambda: load("stopped.ckpt"), sequence(), ckpt_path=Path("stopped.ckpt"))
    for first, second in zip(weights(expected), weights(resumed), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    assert "other arguments" not in capsys.readouterr().err
