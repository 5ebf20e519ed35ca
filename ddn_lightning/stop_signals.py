"""Signals that ask a run to stop, noted down until there is a good moment."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

STOP_SIGNALS = [number for name in ("SIGINT", "SIGTERM", "SIGUSR1") if (number := getattr(signal, name, None))]


class Interrupted(SystemExit):
    """The run was asked to stop, and has saved where it is. The exit code is the shell's for the signal."""

    def __init__(self, signal_number: int, checkpoint: Path) -> None:
        super().__init__(128 + signal_number)
        self.signal_name = signal.Signals(signal_number).name
        self.checkpoint = checkpoint


class StopSignals:
    """Listens for Ctrl-C, SIGTERM and SIGUSR1 (which SLURM can be told to send ahead of a time limit).

    A step is never interrupted: :attr:`received` says which signal came, if any. A second Ctrl-C stops at once.
    """

    received: int = 0

    def __init__(self) -> None:
        self._handlers_before: dict[int, Any] = {}

    def listen(self) -> None:
        """Start noting signals. Python handles them in the main thread only; elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread() and not self._handlers_before:
            self.received = 0
            self._handlers_before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}

    def ignore(self) -> None:
        """Leave signals to whoever handled them before."""
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        self._handlers_before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
