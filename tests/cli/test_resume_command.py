"""The real command, killed at random moments and resumed, leaves the files of an undisturbed run."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from bit_for_bit import difference
from every_method import COMBINATIONS

from ddn_lightning import LabelDistiller, ReplayMethod
from ddn_lightning.callbacks.stop_signals import STOP_SIGNALS
from ddn_lightning.cli import main

ROOT = Path(__file__).parents[2]
SHORT = ["--data.epochs_per_task", "2", "--save_every_n_minutes", "0", "--trainer.enable_progress_bar", "false"]
QUICKSTART = ["fit", "-c", str(ROOT / "configs" / "quickstart.yaml"), *SHORT]


def options(method: type[ReplayMethod], distiller: type[LabelDistiller] | None) -> list[str]:
    chosen = ["--model", f"{method.__module__}.{method.__name__}", "--model.buffer_size", "30"]
    return chosen if distiller is None else [*chosen, "--model.distiller", distiller.__name__]


def start(*arguments: str) -> subprocess.Popen[str]:
    """As a user does; with one thread, as everything in these tests."""
    places = os.pathsep.join(str(ROOT / folder) for folder in ("", "tests", "tests/methods"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    return subprocess.Popen(
        [sys.executable, "-m", "ddn_lightning", *QUICKSTART, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def started_and_stopped(name: str, number: int, delay: float, *arguments: str, to_all: bool = False) -> str | None:
    """What a run printed that was sent a signal some time after its first checkpoint; None if it was over by then."""

    def saved_at() -> int:
        last = Path(f"runs/{name}/checkpoints/last.ckpt")
        return last.stat().st_mtime_ns if last.exists() else 0

    before = saved_at()
    process = start("--name", name, *arguments)
    while process.poll() is None and saved_at() == before:
        time.sleep(0.01)
    time.sleep(delay)
    if process.poll() is None:
        os.killpg(process.pid, number) if to_all else process.send_signal(number)
    _, printed = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL, 128 + number), printed
    return None if process.returncode == 0 else printed


def assert_same_outcome(first: str, second: str) -> None:
    checkpoints, results = [], []
    for name in (first, second):
        checkpoint = torch.load(f"runs/{name}/checkpoints/last.ckpt", weights_only=True)
        del checkpoint["callbacks"]["RunRecord"]  # the time it took, and the name
        checkpoints.append(checkpoint)
        result = json.loads(Path(f"runs/{name}/results.json").read_text())
        del result["seconds"], result["cpu_minutes"]
        results.append(result)
    assert difference(*checkpoints) is None
    assert results[0] == results[1]
    for file in ("metrics.csv", "accuracy_matrix.csv"):
        assert Path(f"runs/{first}/{file}").read_text() == Path(f"runs/{second}/{file}").read_text()


@pytest.mark.slow
def test_a_run_killed_at_a_random_moment_and_resumed_ends_as_if_undisturbed() -> None:
    chosen = ["--model.distiller", "DataDistillNet"]
    assert main([*QUICKSTART, "--name", "undisturbed", *chosen]) == 0
    delay = random.SystemRandom().uniform(0, 2)
    started_and_stopped("killed", signal.SIGKILL, delay, *chosen)
    assert main([*QUICKSTART, "--name", "killed", "--ckpt_path", "last", *chosen]) == 0, delay
    assert_same_outcome("undisturbed", "killed")


def test_a_run_stopped_twice_first_on_an_epochs_last_batch_ends_as_if_undisturbed() -> None:
    """18 steps are an epoch: resumed there, the next stop used to start its epoch anew, and 4 steps too many."""
    assert main([*QUICKSTART, "--name", "undisturbed"]) == 0
    for limit in (["--trainer.max_steps", "18"], ["--trainer.max_steps", "23"], []):
        assert main([*QUICKSTART, "--name", "stopped", "--ckpt_path", "auto", *limit]) == 0
    assert_same_outcome("undisturbed", "stopped")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "distiller"), COMBINATIONS)
def test_every_method_survives_several_real_stops(
    method: type[ReplayMethod], distiller: type[LabelDistiller] | None
) -> None:
    chosen = options(method, distiller)
    undisturbed = start("--name", "undisturbed", *chosen)
    undisturbed.communicate()
    assert undisturbed.returncode == 0
    moments = random.SystemRandom()
    for name in ("first", "second"):
        stops = []
        for _ in range(3):
            number, delay = moments.choice((signal.SIGKILL, *STOP_SIGNALS)), moments.uniform(0, 1)
            stops.append((number, delay))
            if started_and_stopped(name, number, delay, "--ckpt_path", "auto", *chosen) is None:
                break  # it was done before
        resumed = start("--name", name, "--ckpt_path", "auto", *chosen)
        _, printed = resumed.communicate()
        assert resumed.returncode == 0, (stops, printed)
        assert_same_outcome("undisturbed", name)


@pytest.mark.slow  # test_readme.py runs the printed line by default
def test_a_stopped_run_prints_a_resume_command_that_works() -> None:
    assert main([*QUICKSTART, "--name", "undisturbed"]) == 0
    printed = started_and_stopped("stopped", signal.SIGTERM, 0.2)
    assert printed is not None
    assert "Traceback" not in printed
    (command,) = re.findall(
        "^stopped by SIGTERM, saved in runs/stopped/checkpoints/last.ckpt; resume with\nddn (.*)$", printed, re.M
    )
    assert main(shlex.split(command)) == 0
    assert_same_outcome("undisturbed", "stopped")


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [True, False])  # as a terminal does, and as kill does
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork", "ddp_spawn"])
def test_two_devices_stop_and_resume_together(strategy: str, number: int, to_all: bool) -> None:
    devices = ["--trainer.devices", "2", "--trainer.strategy", strategy, "--data.epochs_per_task", "6"]
    assert main([*QUICKSTART, "--name", "undisturbed", "--data.epochs_per_task", "6"]) == 0
    printed = started_and_stopped("stopped", number, 0.5, *devices, to_all=to_all)
    assert printed is not None
    assert "Traceback" not in printed
    assert "resume with" in printed
    resumed = start("--name", "stopped", "--ckpt_path", "last", *devices)
    resumed.communicate()
    assert resumed.returncode == 0
    results = [json.loads(Path(f"runs/{name}/results.json").read_text()) for name in ("undisturbed", "stopped")]
    assert results[0]["accuracy_matrix"][:2] == results[1]["accuracy_matrix"][:2]
