"""Progress of a plan: a live table on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ddn_lightning.report.tables import duration
from ddn_lightning.reproduce.executor import Event, log_of
from ddn_lightning.reproduce.grid import Cell
from ddn_lightning.reproduce.plan import Run

GOOD, BAD = ("found", "finished"), ("failed", "diverged")
ENDED = (*GOOD, *BAD)


class PlanProgress:
    """Shows the progress of a plan on standard error, so that the result can be piped.

    Args:
        runs: All runs of the plan.
        jobs: Number of parallel runs.
        console: Console to write to.
    """

    def __init__(self, runs: Sequence[Run], jobs: int, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.jobs = jobs
        self.events: dict[Run, Event] = {}
        self._planned = Counter(run.cell for run in runs)
        self._started: dict[Run, float] = {}
        self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Record and show an event of a run."""
        if event == self.events.get(event.run):  # another plan is still executing it
            return
        self.events[event.run] = event
        self._started[event.run] = time.monotonic()
        if event.state == "failed":
            self._print(f"failed after {duration(event.seconds)}: {event.run.folder.name}")
            self._print(f"    {event.message}\n    {log_of(event.run)}")
        elif event.state == "diverged":
            self._print(f"diverged: {event.run.folder.name}")
            self._print(f"    {event.message}\n    to run it again, delete {event.run.folder}")
        elif event.state == "stopping":
            self._print(f"stopping {event.run.folder.name}, which saves a checkpoint; Ctrl-C again kills it")
        elif not self.console.is_terminal:
            took = f" in {duration(event.seconds)}" if event.state == "finished" else ""
            self._print(f"{self.summary()}: {event.state} {event.run.folder.name}{took}")

    def summary(self) -> str:
        """The state of the whole plan in one line."""
        parts = [f"{self._count(*ENDED)} of {self._planned.total()} runs done"]
        parts += [f"{number} of them {state}" for state in BAD if (number := self._count(state))]
        if (seconds := self.seconds_left()) is not None:
            parts.append(f"about {duration(seconds)} left")
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """Estimated from the finished runs; ``None`` if no run has finished yet, or none is left."""
        took = [event.seconds for event in self.events.values() if event.state == "finished"]
        left = self._planned.total() - self._count(*ENDED)
        if not took or not left:
            return None
        now = time.monotonic()
        running = sum(now - self._started[run] for run, event in self.events.items() if event.state == "started")
        return max(0.0, sum(took) / len(took) * left - running) / min(self.jobs, left)

    def _count(self, *states: str, cell: Cell | None = None) -> int:
        return sum(event.state in states and cell in (None, run.cell) for run, event in self.events.items())

    def _table(self) -> Group:
        """The summary, and a row for each cell that is not done."""
        table = Table("setting", "data", "buffer", "method", "plug-in", "done", "running", *BAD, "planned")
        for cell, planned in self._planned.items():
            counts = [self._count(*states, cell=cell) for states in (GOOD, ("started",), *((state,) for state in BAD))]
            if counts[0] < planned:
                plugin = f"{cell.plugin} {cell.variant}".strip()
                table.add_row(
                    *(cell.setting, cell.data, str(cell.buffer_size), cell.method, plugin),
                    *map(str, (*counts, planned)),
                )
        return Group(Text(self.summary(), style="bold"), table)

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
