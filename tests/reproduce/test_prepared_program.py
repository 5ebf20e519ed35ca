"""Runs that are forks of one prepared process behave as processes of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddn_lightning.reproduce import prepared_program
from ddn_lightning.reproduce.prepared_program import PreparedProcess, PreparedProgram
from ddn_lightning.runs.files import lock_open

STAND_IN = """
import atexit, os, signal, sys, time, torch
atexit.register(print, "exit")
print("threads", torch.get_num_threads(), torch.ones(2**20).add(1).mean().item(), os.environ["MARK"], sys.argv[1:])
print("session", os.getsid(0) == os.getpid(), "folder", os.getcwd(), sys.path[0])
sys.stdout.flush()
what = sys.argv[1]
if what == "crash":
    raise RuntimeError("crashed")
if what == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("ready", flush=True)
    time.sleep(60)
sys.exit(int(what))
"""
SERVER = """
import socket, sys
from ddn_lightning.reproduce import prepared_program
prepared_program.PROGRAM, prepared_program.IMPORTED = "stand_in_program", ("torch",)
prepared_program._main(socket.socket(fileno=int(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedProgram]:
    """A server whose forks execute the stand-in."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "stand_in_program.py").write_text(STAND_IN)
    (folder / "server.py").write_text(SERVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_program, "SERVER", "server")
        patch.chdir(folder)
        environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        made = PreparedProgram(environment)
    yield made
    made.close()


def start(program: PreparedProgram, *arguments: str, log: str = "log") -> PreparedProcess:
    environment = os.environ | {"MARK": log}
    with Path(log).open("ab") as file:
        assert lock_open(file.fileno())
        return program.start(arguments, file.fileno(), environment)


def wait_for(text: str, log: str = "log") -> None:
    deadline = time.monotonic() + 60
    while text not in Path(log).read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_fork_has_its_arguments_environment_threads_and_session(program: PreparedProgram) -> None:
    first, second = start(program, "0"), start(program, "7", "--option", log="other")
    assert (first.wait(60), second.wait(60)) == (0, 7)
    assert Path("log").read_text().startswith("threads 2 2.0 log ['0']\nsession True folder ")
    assert Path("other").read_text().startswith("threads 2 2.0 other ['7', '--option']\n")
    assert Path("log").read_text().endswith("\nexit\n")
    assert first.poll() == 0


def test_a_crash_ends_in_a_traceback_in_the_log_and_leaves_the_others(program: PreparedProgram) -> None:
    other = start(program, "wait", log="other")
    crashed = start(program, "crash")
    assert crashed.wait(60) == 1
    assert Path("log").read_text().splitlines()[-2:] == ["RuntimeError: crashed", "exit"]
    assert other.poll() is None
    os.killpg(other.pid, signal.SIGKILL)
    assert other.wait(60) == -signal.SIGKILL


def test_a_signal_reaches_the_fork_and_its_log_is_locked_until_it_ends(program: PreparedProgram) -> None:
    process = start(program, "wait")
    wait_for("ready")
    with Path("log").open("ab") as log:
        assert not lock_open(log.fileno())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    with Path("log").open("ab") as log:
        assert lock_open(log.fileno())


def test_a_signal_right_after_the_start_ends_the_fork_and_every_end_is_reported(program: PreparedProgram) -> None:
    for _ in range(20):
        process = start(program, "wait")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) in (143, -signal.SIGTERM)
