"""Stop signals, recorded until the end of a batch."""

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
    """A signal stopped the run after a checkpoint. The exit code is the shell's for the signal."""

    def __init__(self, signal_number: int, checkpoint: Path) -> None:
        super().__init__(128 + signal_number)
        self.signal_name = signal.Signals(signal_number).name
        self.checkpoint = checkpoint
        self.run: str | None = None  # the name of the run, if it has one


class StopSignals:
    """Records Ctrl-C, SIGTERM and SIGUSR1 (which SLURM can send before a time limit) without interrupting a step.

    :attr:`received` is the number of the signal, 0 for none. A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.received = self._interrupts = 0
        self._handlers_before: dict[int, Any] = {}

    def listen(self) -> None:
        """Install the handlers, if called from the main thread: Python handles signals only there."""
        if threading.current_thread() is threading.main_thread() and not self._handlers_before:
            self.received = self._interrupts = 0
            self._handlers_before = {number: signal.signal(number, self.note) for number in STOP_SIGNALS}

    def stop_listening(self) -> None:
        """Restore the handlers from before :meth:`listen`."""
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        self._handlers_before = {}

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self.received = self.received or number


class _ForwardedSignals(StopSignals):
    def __init__(self, kill: Callable[[int], None]) -> None:
        super().__init__()
        self._kill = kill

    def note(self, number: int, frame: FrameType | None = None) -> None:
        super().note(number, frame)
        # a terminal sends Ctrl-C to all processes, and a second SIGINT would stop them at once
        self._kill(signal.SIGTERM if number == signal.SIGINT else number)


@contextmanager
def passing_on(kill: Callable[[int], None], checkpoint: Path) -> Iterator[None]:
    """Forward stop signals to the training processes by ``kill``; raise :class:`Interrupted` when they have stopped."""
    signals = _ForwardedSignals(kill)
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
