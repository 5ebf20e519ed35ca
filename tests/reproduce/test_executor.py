"""Executing runs with a fake ``ddn`` that takes milliseconds."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddn_lightning.callbacks.stop_signals import StopSignals
from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce import executor
from ddn_lightning.reproduce.executor import Event, ProcessExecutor, can_resume, log_of
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.runs.results import read_result
from ddn_lightning.runs.run_folder import RunFolder

PROGRAM = (sys.executable, str(Path(__file__).with_name("stand_in.py")))
RUNS = Path("runs")


def make_runs(number: int) -> list[Run]:
    cell = Cell("offline", "digits", 100, "er")
    return [Run(cell, seed, ("--seed_everything", str(seed)), RUNS / f"run-{seed}") for seed in range(1, number + 1)]


def make_executor(jobs: int = 1, devices: tuple[str, ...] = ()) -> ProcessExecutor:
    return ProcessExecutor(jobs, devices, PROGRAM)


def execute(runs: list[Run], jobs: int = 1) -> list[Event]:
    return list(make_executor(jobs).execute(runs))


def states(events: list[Event], run: Run) -> list[str]:
    return [event.state for event in events if event.run == run]


def starts_of(run: Run) -> Path:
    return run.folder.with_name(f"{run.folder.name}.starts")


def starts(run: Run) -> list[str]:
    return [line.split()[0] for line in starts_of(run).read_text().splitlines()]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_run_is_executed_once_and_then_found(jobs: int) -> None:
    runs = make_runs(4)
    events = execute(runs, jobs)
    assert all(states(events, run) == ["started", "finished"] for run in runs)
    assert [read_result(run.folder).acc for run in runs] == [41, 42, 43, 44]  # type: ignore[union-attr]
    again = execute(runs, jobs)
    assert all(states(again, run) == ["found"] for run in runs)
    assert all(starts(run) == ["new"] for run in runs)


def test_at_most_jobs_runs_are_parallel_and_devices_are_assigned_in_turn() -> None:
    runs = make_runs(6)
    active: set[Run] = set()
    most = 0
    for event in make_executor(jobs=3, devices=("4", "7")).execute(runs):
        (active.add if event.state == "started" else active.remove)(event.run)
        most = max(most, len(active))
    assert most == 3
    used = [starts_of(run).read_text().split()[1] for run in runs]
    assert set(used) == {"4", "7"}


def test_a_diverged_run_is_reported_and_not_restarted_until_its_folder_is_deleted() -> None:
    RUNS.mkdir()
    (RUNS / "diverging").write_text("run-2")
    runs = make_runs(3)
    events = execute(runs)
    assert [states(events, run)[-1] for run in runs] == ["finished", "diverged", "finished"]
    again = execute(runs)
    assert [states(again, run) for run in runs] == [["found"], ["diverged"], ["found"]]
    for (event,) in ([one for one in found if one.state == "diverged"] for found in (events, again)):
        assert event.message == "loss became nan in task 2 at step 7 with lr 9: lower --model.lr"
    assert starts(runs[1]) == ["new"]
    assert not can_resume(runs[1].folder)
    shutil.rmtree(runs[1].folder)
    (RUNS / "diverging").unlink()
    assert states(execute(runs), runs[1]) == ["started", "finished"]


def test_a_failing_run_leaves_its_log_and_does_not_stop_the_others() -> None:
    RUNS.mkdir()
    (RUNS / "poison").write_text("run-2")
    runs = make_runs(3)
    events = execute(runs)
    assert [states(events, run)[-1] for run in runs] == ["finished", "failed", "finished"]
    (failed,) = [event for event in events if event.state == "failed"]
    assert failed.message == "error: poisoned"
    log = log_of(runs[1]).read_text()
    assert "$ ddn fit --seed_everything 2 --runs runs --name run-2" in log
    assert "error: poisoned" in log
    (RUNS / "poison").unlink()
    (RUNS / "crashing").write_text("run-2")  # an earlier attempt's error is not this one's
    (failed,) = [event for event in execute(runs) if event.state == "failed"]
    assert failed.message == "RuntimeError: crashed"
    (RUNS / "crashing").unlink()  # after the fix, only the failed run is executed
    again = execute(runs)
    assert [states(again, run) for run in runs] == [["found"], ["started", "finished"], ["found"]]


def test_a_killed_run_resumes_from_its_checkpoint_or_restarts_without_one() -> None:
    with_checkpoint, without = make_runs(2)
    (with_checkpoint.folder / "checkpoints").mkdir(parents=True)
    (with_checkpoint.folder / "checkpoints/last.ckpt").touch()
    without.folder.mkdir()
    (without.folder / "metrics.csv").touch()
    (RUNS / "another run").mkdir()
    assert can_resume(with_checkpoint.folder)
    assert can_resume(without.folder)
    events = execute([with_checkpoint, without])
    assert [event.state for event in events if event.state != "started"] == ["finished"] * 2
    assert all("--ckpt_path auto" in log_of(run).read_text() for run in (with_checkpoint, without))
    assert (without.folder / "metrics.csv").exists()  # which the run itself replaces, if it may
    assert (RUNS / "another run").exists()
    assert not can_resume(with_checkpoint.folder)  # it is finished


def interrupted(runs: list[Run], number: signal.Signals) -> list[Event]:
    """Execute slow runs, and send this process a signal once all have started."""

    def send() -> None:
        wait_for(lambda: all((run.folder / "ready").exists() for run in runs))
        os.kill(os.getpid(), number)

    RUNS.mkdir()
    (RUNS / "slow").write_text("run")
    sender = threading.Thread(target=send)
    sender.start()
    stop = StopSignals()
    stop.listen()
    events = list(make_executor(jobs=len(runs)).execute(runs, lambda: bool(stop.received)))
    stop.stop_listening()
    sender.join()
    return events


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_plan_lets_its_runs_save_and_resumes_them_later(number: signal.Signals) -> None:
    runs = make_runs(2)
    events = interrupted(runs, number)
    assert all(states(events, run) == ["started", "stopping"] for run in runs)
    assert all(can_resume(run.folder) for run in runs)
    events = execute(runs)
    assert all(states(events, run) == ["started", "finished"] for run in runs)
    assert all(starts(run) == ["new", "resumed"] for run in runs)


def test_a_run_that_was_killed_or_ended_early_says_so() -> None:
    RUNS.mkdir()
    (RUNS / "killed").write_text("run-1")
    (RUNS / "short").write_text("run-2")
    messages = [event.message for event in execute(make_runs(2)) if event.state == "failed"]
    assert messages == ["it was killed by signal 9", "it ended before its last task"]


def test_a_second_ctrl_c_stops_at_once_whatever_came_before() -> None:
    stop = StopSignals()
    stop.note(signal.SIGTERM)
    stop.note(signal.SIGTERM)
    stop.note(signal.SIGINT)
    assert stop.received == signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        stop.note(signal.SIGINT)


def stubborn_process() -> "subprocess.Popen[bytes]":
    script = "trap '' TERM; touch ready; sleep 60 & wait; sleep 60"
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    wait_for(Path("ready").exists)
    return process


def test_runs_that_do_not_exit_in_time_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "GRACE_SECONDS", 0.2)
    process = stubborn_process()
    executor._stop([process])
    assert process.returncode == -signal.SIGKILL


def test_a_second_interrupt_kills_at_once() -> None:
    process = stubborn_process()
    stop = StopSignals()
    stop.listen()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    executor._stop([process])
    stop.stop_listening()
    assert process.returncode == -signal.SIGKILL


def test_a_run_that_another_plan_executes_is_waited_for() -> None:
    first, second = make_runs(2)
    RUNS.mkdir()
    with log_of(first).open("ab") as log:  # like a run that outlives its plan
        fcntl.flock(log, fcntl.LOCK_EX)
        holder = subprocess.Popen(["sleep", "60"], stdout=log)
    events = []
    for event in make_executor().execute([first, second]):
        events.append(event)
        if event.state == "finished" and event.run == second:
            time.sleep(0.5)
            assert set(states(events, first)) == {"elsewhere"}
            first.folder.mkdir()
            (first.folder / "results.json").write_bytes((second.folder / "results.json").read_bytes())
            holder.kill()
            holder.wait()
    assert states(events, first)[-1] == "found"
    assert not starts_of(first).exists()


def test_a_run_that_was_started_by_hand_is_waited_for_and_not_deleted() -> None:
    (run,) = make_runs(1)
    run.folder.mkdir(parents=True)
    by_hand = RunFolder(run.folder, is_new=False).locked()  # before its first checkpoint
    events = []
    for event in make_executor().execute([run]):
        events.append(event)
        if len(events) == 3:
            assert set(states(events, run)) == {"elsewhere"}
            assert run.folder.is_dir()
            by_hand.unlock()
    assert states(events, run)[-2:] == ["started", "finished"]


def test_cores_are_divided_between_jobs_unless_the_user_sets_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert make_executor(jobs=3)._environment(0)["OMP_NUM_THREADS"] == "2"
    assert make_executor(jobs=20)._environment(0)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert make_executor(jobs=3)._environment(0)["OMP_NUM_THREADS"] == "5"


def test_jobs_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="jobs must be positive, got 0"):
        make_executor(jobs=0)
