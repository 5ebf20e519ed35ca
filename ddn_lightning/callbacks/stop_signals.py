"""Signals that ask a run to stop, noted down until there is a good moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch.multiprocessing.spawn import ProcessExitedException

STOP_SIGNALS = [number for name in ("SIGINT", "SIGTERM", "SIGUSR1") if (number := getattr(signal, name, None))]


class Interrupted(SystemExit):
    """The run was asked to stop, and has saved where it is. The exit code is the shell's for the signal."""

    def __init__(self, signal_number: int, checkpoint: Path) -> None:
        super().__init__(128 + signal_number)
        self.signal_name = signal.Signals(signal_number).name
        self.checkpoint = checkpoint
        self.run: str | None = None  # its name, where it has one


class StopSignals:
    """Listens for Ctrl-C, SIGTERM and SIGUSR1 (which SLURM can be told to send ahead of a time limit).

    A step is never interrupted: :attr:`received` says which signal came, 0 for none. A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.received = 0
        self._handlers_before: dict[int, Any] = {}

    def listen(self) -> None:
        """Start noting signals. Python handles them in the main thread only; elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread() and not self._handlers_before:
            self.received = 0
            self._handlers_before = {number: signal.signal(number, self.note) for number in STOP_SIGNALS}

    def stop_listening(self) -> None:
        """Leave signals to whoever handled them before."""
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        self._handlers_before = {}

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """A signal has come."""
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number


class _PassedOn(StopSignals):
    def __init__(self, kill: Callable[[int], None]) -> None:
        super().__init__()
        self._kill = kill

    def note(self, number: int, frame: FrameType | None = None) -> None:
        super().note(number, frame)
        # a terminal sends Ctrl-C to all processes itself, and two of them would stop at once
        self._kill(signal.SIGTERM if number == signal.SIGINT else number)


@contextmanager
def passing_on(kill: Callable[[int], None], checkpoint: Path) -> Iterator[None]:
    """For a process that only waits for those it has started: pass signals on to them, and stop once they have saved.

    Args:
        kill: Sends a signal to all of them.
        checkpoint: What they save when they stop.
    """
    signals = _PassedOn(kill)
    signals.listen()
    try:
        yield
    except ProcessExitedException as error:
        number = (error.exit_code or 0) - 128
        if number not in STOP_SIGNALS:
            raise
        raise Interrupted(signals.received or number, checkpoint) from error
    finally:
        signals.stop_listening()
