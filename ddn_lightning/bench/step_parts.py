"""Where the time of a step goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ddn_lightning.bench.stopwatch import Clock
from ddn_lightning.bench.subject import Subject

PARTS = ("augment", "draw", "forward", "backward and step", "meta-update", "insert", "rest")
WHOLE = "meta-update"  # whose own draws and passes belong to it


class StepParts:
    """Adds up the time that a subject's steps spend in each part, in what they call and not in what that calls.

    The step itself is the real one: the functions it calls are wrapped for as long as it is watched.

    Args:
        subject: Whose steps.
        clock: Tells the time in seconds.
    """

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self.subject = subject
        self.clock = clock
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = 0.0

    def watch_step(self) -> None:
        """Take a step, and add its parts up."""
        with self._wrapped(), self._within("rest"):
            self.subject.step()

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        method, distiller = self.subject.method, self.subject.method.distiller
        functions: list[tuple[str, Any, str]] = [
            ("augment", method, "augment"),
            ("draw", method, "draw_memory"),
            ("forward", method, "forward"),
            ("forward", method, "loss"),
            ("backward and step", method, "_descend"),
            ("insert", self.subject, "insert"),
        ]
        if distiller is not None:
            functions.append(("meta-update", distiller, "update"))
        for part, owner, name in functions:
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        try:
            yield
        finally:
            for _, owner, name in functions:
                delattr(owner, name)  # the wrapper, in front of the class's own

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._within(part):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def _within(self, part: str) -> Iterator[None]:
        self._switch(self._open[-1] if self._open else None)
        self._open.append(WHOLE if WHOLE in self._open else part)
        try:
            yield
        finally:
            self._switch(self._open.pop())

    def _switch(self, ended: str | None) -> None:
        now = self.clock()
        if ended is not None:
            self.seconds[ended] += now - self._since
        self._since = now
