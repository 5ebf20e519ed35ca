"""A run stopped and resumed several times, at critical moments, ends bit for bit like an undisturbed one."""

import os
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import COMBINATIONS, build
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import Timer
from tiny import TinySequence, quiet_trainer

from ddn_lightning import CurveLogger, LabelDistiller, LastCheckpoint, Observations, ReplayMethod, TaskCallback
from ddn_lightning.callbacks.stop_signals import Interrupted

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks"),  # a stop's own
]

HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "end_task",
    "on_task_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_task_measured",
    "on_validation_end",
    "on_train_epoch_end",
    "on_save_checkpoint",
    "on_task_exit",
    "on_train_end",
)
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1")
LAST = Path("checkpoints/last.ckpt")


@dataclass(frozen=True)
class Stop:
    """How a run is stopped, and when: in the first call of a hook once so many steps are taken."""

    how: str
    hook: str
    step: int
    minutes: float  # between two checkpoints


class SignalIn(TaskCallback):
    """Sends its own process a signal in a hook."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.is_sent = False
        if stop.hook != "end_task":
            setattr(self, stop.hook, self.send)

    def setup(self, trainer: Trainer, pl_module: ReplayMethod, stage: str) -> None:  # type: ignore[override]
        self.trainer = trainer
        if self.stop.hook == "end_task":
            work = pl_module.end_task

            def end_task() -> None:
                work()
                self.send()  # what was done is not saved yet

            pl_module.end_task = end_task  # type: ignore[method-assign]

    def send(self, *_: Any, **__: Any) -> None:
        if self.trainer.global_step >= self.stop.step and not self.is_sent:
            self.is_sent = True
            os.kill(os.getpid(), getattr(signal, self.stop.how))


class StepTimer(Timer):
    """Trainer(max_time=...) in a world in which a step takes a second."""

    def on_fit_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        self.trainer = trainer
        super().on_fit_start(trainer)

    def time_elapsed(self, stage: str = "train") -> float:
        return float(self.trainer.global_step)


class EpochEnds(Callback):
    """Notes after how many steps each epoch ends: methods serve their epochs with more or fewer."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        self.steps.append(trainer.global_step)


def sequence() -> TinySequence:
    """2, 3 and 5 steps per epoch, the last one short; evaluated within tasks as well."""
    per_class = (10, 10, 15, 15, 22, 23)
    return TinySequence(epochs_per_task=2, batch_size=10, per_class=per_class, evaluate_every_n_epochs=1)


def run(
    make: Callable[[], ReplayMethod],
    stop: Stop | None = None,
    *watching: Callback,
) -> None:
    """Train until the end or the stop, from the last checkpoint if there is one."""
    arguments: dict[str, Any] = {"logger": CurveLogger(".", "curves", version=""), "log_every_n_steps": 2}
    callbacks: list[Callback] = [
        *watching,
        LastCheckpoint(every_n_minutes=stop.minutes if stop else 1000),
        Observations(),
    ]
    if stop is not None and stop.how == "max_steps":
        arguments["max_steps"] = stop.step
    elif stop is not None and stop.how == "max_time":
        callbacks.append(StepTimer(timedelta(seconds=stop.step)))
    elif stop is not None:
        callbacks.append(SignalIn(stop))
    ckpt_path = LAST if LAST.exists() else None
    seed_everything(99 if ckpt_path else 0, verbose=False)  # a resumed run has its checkpoint's seed
    trainer = quiet_trainer(enable_checkpointing=True, callbacks=callbacks, **arguments)
    trainer.fit(make(), sequence(), ckpt_path=ckpt_path)


def run_in_child(make: Callable[[], ReplayMethod], stop: Stop) -> int:
    """Its exit code, or minus the number of the signal that ended it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        code = 1
        try:
            run(make, stop)
            code = 0
        except Interrupted as interrupted:
            code = int(interrupted.code or 0)
        except SystemExit:  # Lightning's, for a signal that came after training
            code = 128 + getattr(signal, stop.how)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def draw_stops(draws: random.Random, epoch_ends: list[int]) -> list[Stop]:
    """Two to four stops, half of them around the end of an epoch or the first batch."""
    stops, step = [], 0
    for _ in range(draws.randint(2, 4)):
        ends = [end for end in epoch_ends if end > step]
        purposely = [*ends[:2], *ends[:2], step + 1, *(end - 1 for end in ends[:1])]
        at = draws.choice(purposely) if draws.random() < 0.7 else draws.randint(step, min(step + 8, epoch_ends[-1]))
        how, hook = draws.choice((*SIGNALS, *SIGNALS, "max_steps", "max_time")), draws.choice(HOOKS)
        if hook == "on_train_end":
            how = "SIGKILL"  # any other signal is too late to stop anything
        at = 0 if hook == "on_train_start" else at if stops else min(at, epoch_ends[1])  # the first is sure to stop it
        stops.append(Stop(how, hook, at, draws.choice((0, 0, 1000))))
        step = min(max(at, step), epoch_ends[-1] - 1)
    return stops


def left_behind() -> dict[str, Any]:
    """All that a run leaves."""
    checkpoint = torch.load(LAST, weights_only=True)
    for callback in ("SignalIn", "StepTimer"):
        checkpoint["callbacks"].pop(callback, None)
    return {"checkpoint": checkpoint, "curves": Path("curves/metrics.csv").read_bytes()}


@cache
def undisturbed(
    method_class: type[ReplayMethod], distiller_class: type[LabelDistiller] | None
) -> tuple[Any, list[int]]:
    """What a run leaves that nobody stops, in the current folder, and after how many steps its epochs end."""
    ends = EpochEnds()
    run(partial(build, method_class, distiller_class, momentum=0.9), None, ends)
    assert len(ends.steps) == 6
    return left_behind(), ends.steps


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 13))])
@pytest.mark.parametrize(("method_class", "distiller_class"), COMBINATIONS)
def test_any_sequence_of_stops_changes_nothing(
    method_class: type[ReplayMethod],
    distiller_class: type[LabelDistiller] | None,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = partial(build, method_class, distiller_class, momentum=0.9)
    expected, epoch_ends = undisturbed(method_class, distiller_class)
    (tmp_path / "stopped").mkdir()
    monkeypatch.chdir(tmp_path / "stopped")
    stops = draw_stops(random.Random(f"{method_class} {distiller_class} {number}"), epoch_ends)
    codes = [run_in_child(make, stop) for stop in stops]
    assert 1 not in codes, stops
    is_stopped = [code != 0 or stop.how.startswith("max") for code, stop in zip(codes, stops, strict=True)]
    assert any(is_stopped), stops  # or nothing was tested
    run(make)
    assert difference(left_behind(), expected) is None, stops
