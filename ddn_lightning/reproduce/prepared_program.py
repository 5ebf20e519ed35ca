"""``ddn`` as forks of one process that has imported everything: a short run takes longer to import than to train."""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from ddn_lightning.callbacks.stop_signals import STOP_SIGNALS

CAN_FORK = sys.platform == "linux"  # elsewhere libraries do not survive it
PROGRAM, SERVER = "ddn_lightning", __name__  # executed by ``python -m``
IMPORTED = ("ddn_lightning.cli.trainer_command", "ddn_lightning.report.figures", "sklearn.datasets")
LONGEST_MESSAGE = 2**20
LOST = 1  # exit code of a process whose exit code is unknown


class PreparedProgram:
    """Starts runs as forks of a server, a process that has imported the libraries and computed nothing.

    Neither threads nor the state of a GPU would survive a fork. The server ends with this process; its forks do not.

    Args:
        environment: Environment of the server. Libraries read the number of their threads when they are imported.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._server = subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, "-m", SERVER, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # messages of imports, which its forks do not repeat
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=(other.fileno(),),
                start_new_session=True,  # as the forks: Ctrl-C reaches this process only
            )
        self._codes: dict[int, int] = {}
        self._started: list[int] = []

    def start(self, arguments: Sequence[str], log: int, environment: Mapping[str, str]) -> "PreparedProcess":
        """Start a run.

        Args:
            arguments: Arguments of ``ddn``.
            log: Descriptor of the file for all output. Its lock lasts until the process ends.
            environment: Environment of the process.
        """
        request = json.dumps([list(arguments), dict(environment)]).encode()
        socket.send_fds(self._channel, [request], [log])
        while not self._started:
            if not self._receive(None):
                raise ConnectionError("the process that starts the runs has ended: is there enough memory?")
        return PreparedProcess(self, self._started.pop())

    def code_of(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a process as in ``Popen``; ``None`` if it has not ended in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            if not self._receive(None if deadline is None else max(0.0, deadline - time.monotonic())):
                is_lost = self._server.poll() is not None and not Path(f"/proc/{pid}").exists()
                return LOST if is_lost else None
        return self._codes[pid]

    def close(self) -> None:
        """End the server."""
        self._channel.close()
        self._server.wait()

    def _receive(self, timeout: float | None) -> bool:
        """Read the next message of the server; returns whether one came in time."""
        if not select.select([self._channel], [], [], timeout)[0]:
            return False
        message = self._channel.recv(LONGEST_MESSAGE)
        if not message:
            return False
        pid, code = json.loads(message)
        if code is None:
            self._codes.pop(pid, None)
            self._started.append(pid)
        else:
            self._codes[pid] = code
        return True


class PreparedProcess:
    """A run in a process of its own, with the part of ``Popen`` that an executor uses."""

    def __init__(self, program: PreparedProgram, pid: int) -> None:
        self.program = program
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; ``None`` while it runs."""
        if self.returncode is None:
            self.returncode = self.program.code_of(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        if self.returncode is None:
            self.returncode = self.program.code_of(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(PROGRAM, timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        """Kill the process."""
        os.kill(self.pid, signal.SIGKILL)


def _serve(channel: socket.socket) -> tuple[list[str], int, dict[str, str]] | None:
    """Fork for each request; returns the request in the fork, and ``None`` in the server when nobody is left to ask."""
    woken, waker = socket.socketpair()  # an end that comes right before a blocking call would not be seen by a handler
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            woken.recv(LONGEST_MESSAGE)
            _report_ended(channel)
        if channel not in ready:
            continue
        message, logs, _, _ = socket.recv_fds(channel, LONGEST_MESSAGE, 1)
        if not message:
            return None
        if os.fork() == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            woken.close()
            waker.close()
            os.setsid()  # the process that asked ends it and all its children by one signal
            channel.send(json.dumps([os.getpid(), None]).encode())
            channel.close()
            arguments, environment = json.loads(message)
            return arguments, logs[0], environment
        os.close(logs[0])


def _report_ended(channel: socket.socket) -> None:
    with suppress(ChildProcessError, OSError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            channel.send(json.dumps([ended[0], os.waitstatus_to_exitcode(ended[1])]).encode())


def _main(channel: socket.socket) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until a fork can handle them; the server needs none
    for name in IMPORTED:
        with suppress(Exception):  # the run will say what is wrong
            import_module(name)
    gc.freeze()  # collections in the forks need not look at the libraries
    if (request := _serve(channel)) is None:
        os._exit(0)
    arguments, log, environment = request
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [PROGRAM, *arguments]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    code = _run()
    threading._shutdown()  # type: ignore[attr-defined]  # as Python ends, but for a second spent on unloading the libraries
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        output.flush()
    os._exit(code)


def _run() -> int:
    """Do what ``python -m`` does; returns the exit code."""
    try:
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
