"""Checkpoints are written when due, atomically, and when a run is asked to stop."""

import errno
import io
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bit_for_bit import difference
from every_method import SlowEnding, build
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from tiny import TinySequence
from torch import distributed

from ddn_lightning import ER, ConfigurationError, LastCheckpoint, LowRankMemory, PermutedPixels, ReplayMethod
from ddn_lightning.callbacks.stop_signals import STOP_SIGNALS, Interrupted
from ddn_lightning.errors import SavingError

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
LAST = Path("checkpoints/last.ckpt")


class At(Callback):
    """Does something right before a step, counted from 0."""

    def __init__(self, step: int, action: Callable[[], Any]) -> None:
        self.step = step
        self.action = action

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.action()


def trained(
    fit: Callable[..., ReplayMethod],
    *callbacks: Callback,
    every_n_minutes: float = 0,
    method: type[ReplayMethod] = ER,
    **arguments: Any,
) -> ReplayMethod:
    """12 steps, 4 per task."""
    arguments["callbacks"] = [*callbacks, LastCheckpoint(every_n_minutes=every_n_minutes)]
    return fit(lambda: build(method), enable_checkpointing=True, **arguments)


def saved_step() -> int:
    step: int = torch.load(LAST, weights_only=True)["global_step"]
    return step


@pytest.mark.parametrize(("minutes", "expected"), [(0, list(range(1, 13))), (1000, [4, 8, 12])])
def test_it_saves_when_due_and_at_each_tasks_end(
    fit: Callable[..., ReplayMethod], minutes: float, expected: list[int]
) -> None:
    steps = []

    class Noted(LastCheckpoint):
        def _save(self, trainer: Trainer) -> None:
            super()._save(trainer)
            steps.append(saved_step())

    fit(lambda: build(ER), enable_checkpointing=True, callbacks=[Noted(every_n_minutes=minutes)])
    assert steps == expected
    assert os.listdir("checkpoints") == ["last.ckpt"]


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="every_n_minutes must be zero or positive, got -1"):
        LastCheckpoint(every_n_minutes=-1)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_the_middle_of_writing() -> None:
    def write(checkpoint: dict[str, Any], file: Any) -> None:
        content = io.BytesIO()
        save(checkpoint, content)
        file.write(content.getvalue()[: len(content.getvalue()) // 2])
        file.flush()
        kill()

    save, torch.save = torch.save, write


def kill_before_replacing() -> None:
    Path.replace = lambda *_: kill()  # type: ignore[assignment,method-assign,return-value]


@pytest.mark.parametrize("sabotage", [kill, kill_in_the_middle_of_writing, kill_before_replacing])
def test_a_kill_while_saving_leaves_the_previous_checkpoint(
    fit: Callable[..., ReplayMethod], sabotage: Callable[[], None]
) -> None:
    expected = trained(fit)
    child = os.fork()
    if child == 0:
        trained(fit, At(6, sabotage))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert saved_step() == 6
    resumed = trained(fit, ckpt_path=LAST)
    for name, value in expected.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(), resumed.state_dict()[name].nan_to_num()), name


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("step", [5, 7])  # in a task, and before its last batch
def test_a_signal_stops_after_the_batch_and_loses_nothing(
    fit: Callable[..., ReplayMethod], number: int, step: int
) -> None:
    expected = trained(fit)
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    with pytest.raises(Interrupted) as stop:
        trained(fit, At(step, lambda: os.kill(os.getpid(), number)), every_n_minutes=1000)
    assert stop.value.code == 128 + number
    assert stop.value.checkpoint == LAST
    assert saved_step() == step + 1
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
    resumed = trained(fit, ckpt_path=LAST)
    assert torch.equal(expected.head.weight, resumed.head.weight)  # type: ignore[arg-type]
    assert torch.equal(expected.accuracy_matrix.nan_to_num(), resumed.accuracy_matrix.nan_to_num())


def test_a_signal_during_the_work_at_a_tasks_end_waits_for_it(fit: Callable[..., ReplayMethod]) -> None:
    class Signalled(SlowEnding):
        def end_task(self) -> None:
            if self.task == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            super().end_task()

    with pytest.raises(Interrupted):
        trained(fit, method=Signalled, every_n_minutes=1000)
    state = torch.load(LAST, weights_only=True)["state_dict"]
    assert state["endings"][:3].tolist() == [1, 1, 0]
    assert state["accuracy_matrix"][1, :2].isfinite().all()


def test_a_second_ctrl_c_stops_at_once(fit: Callable[..., ReplayMethod]) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(SystemExit) as stop:  # Lightning's answer to a KeyboardInterrupt
        trained(fit, At(5, twice), every_n_minutes=1000)
    assert not isinstance(stop.value, Interrupted)
    assert saved_step() == 4
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning has set it to be ignored


class StopEarly(Callback):
    """As Lightning's Timer does."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == 6


@pytest.mark.parametrize("stop", [{"max_steps": 6}, {}])
def test_a_stop_within_a_task_is_saved(fit: Callable[..., ReplayMethod], stop: dict[str, Any]) -> None:
    trained(fit, *([] if stop else [StopEarly()]), every_n_minutes=1000, **stop)
    assert saved_step() == 6
    resumed = trained(fit, ckpt_path=LAST)
    assert torch.equal(resumed.head.weight, trained(fit).head.weight)  # type: ignore[arg-type]


def test_a_signal_in_the_sanity_check_stops_after_the_first_batch(fit: Callable[..., ReplayMethod]) -> None:
    class Early(Callback):
        def on_sanity_check_end(self, *_: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        trained(fit, Early(), every_n_minutes=1000, num_sanity_val_steps=1)
    assert saved_step() == 1


def test_ckpt_path_best_finds_it_and_other_modules_are_refused(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[LastCheckpoint()])
    trainer.fit(build(ER), TinySequence(batch_size=6))
    measured = trainer.test(datamodule=TinySequence(batch_size=6), ckpt_path="best", verbose=False)
    assert "test/average_accuracy" in measured[0]
    with pytest.raises(ConfigurationError, match="needs a method such as ER, got BoringModel"):
        make_trainer(enable_checkpointing=True, callbacks=[LastCheckpoint()]).fit(BoringModel())


def test_signals_are_left_alone_outside_the_main_thread(fit: Callable[..., ReplayMethod]) -> None:
    methods: list[ReplayMethod] = []
    thread = threading.Thread(target=lambda: methods.append(trained(fit)))
    thread.start()
    thread.join()
    assert methods[0].tasks_finished == 3


def test_a_signal_to_one_rank_stops_all(fit: Callable[..., ReplayMethod]) -> None:
    def one_rank_only() -> None:
        if distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(torch.multiprocessing.ProcessExitedException) as stop:
        trained(fit, At(5, one_rank_only), every_n_minutes=1000, devices=2, strategy="ddp_fork")
    assert stop.value.exit_code == 128 + signal.SIGUSR1
    assert saved_step() == 6


def fill_the_disk() -> None:
    """From now on no file of this process can become larger than a kilobyte, the log of the tests included."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.parametrize(("step", "message"), [(6, "the previous one is intact"), (0, "there is none yet")])
def test_a_full_disk_leaves_the_previous_checkpoint_intact(
    fit: Callable[..., ReplayMethod], step: int, message: str
) -> None:
    child = os.fork()
    if child == 0:
        try:
            trained(fit, At(step, fill_the_disk))
        except SavingError as error:
            Path("message.txt").write_text(str(error))
        os._exit(0)
    os.waitpid(child, 0)
    said = Path("message.txt").read_text()
    assert said.startswith(f"a checkpoint could not be written to checkpoints/last.ckpt, {message}: ")
    assert "File too large" in said
    assert os.listdir("checkpoints") == (["last.ckpt"] if step else [])
    assert not step or saved_step() == step


def test_a_full_disk_before_a_runs_first_checkpoint_promises_none(
    fit: Callable[..., ReplayMethod], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(fit, max_steps=5)  # another run's

    def is_full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(Path, "rename", is_full)
    with pytest.raises(SavingError, match="could not be written to checkpoints/last.ckpt, there is none yet: "):
        trained(fit, max_steps=3)
    assert saved_step() == 5


def test_a_trial_with_fast_dev_run_leaves_the_checkpoint_alone(fit: Callable[..., ReplayMethod]) -> None:
    trained(fit)
    assert saved_step() == 12
    trained(fit, fast_dev_run=True)
    assert saved_step() == 12


def test_a_run_that_starts_anew_keeps_the_earlier_ones_checkpoints(
    fit: Callable[..., ReplayMethod], capsys: pytest.CaptureFixture[str]
) -> None:
    trained(fit, max_steps=5)
    assert "started anew" not in capsys.readouterr().err
    trained(fit, max_steps=7, ckpt_path=LAST)
    assert saved_step() == 7
    assert not list(LAST.parent.glob("last-*"))
    trained(fit, max_steps=2)
    assert "started anew; the last one's checkpoint is checkpoints/last-v1.ckpt" in capsys.readouterr().err
    trained(fit, max_steps=3)
    steps = [torch.load(LAST.with_stem(f"last-v{n}"), weights_only=True)["global_step"] for n in (1, 2)]
    assert (steps, saved_step()) == ([7, 2], 3)


def test_a_run_begun_without_evaluation_goes_on_with_one_and_again(fit: Callable[..., ReplayMethod]) -> None:
    trained(fit, max_steps=5, limit_val_batches=0)
    trained(fit, max_steps=9, ckpt_path=LAST)
    method = trained(fit, ckpt_path=LAST)
    measured = (~method.accuracy_matrix.isnan()).any(dim=1).tolist()
    assert measured == [False, True, True]  # the first task ended without


def test_low_rank_images_of_classes_that_come_again_resume(fit: Callable[..., ReplayMethod]) -> None:
    def train(**arguments: Any) -> ReplayMethod:
        data = TinySequence(batch_size=6, stream=PermutedPixels())
        callbacks = [LastCheckpoint(every_n_minutes=0)]
        make = lambda: build(ER, memory=LowRankMemory(rank=2, matching_steps=2))  # noqa: E731
        return fit(make, data, enable_checkpointing=True, callbacks=callbacks, **arguments)

    whole = train()
    train(max_steps=int(whole.trainer.global_step) // 2)
    assert not difference(train(ckpt_path=LAST).state_dict(), whole.state_dict())
