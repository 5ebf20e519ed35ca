"""Progress of a search: a live table on a terminal with the best trial of each study, plain lines elsewhere."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ddn_lightning.report.tables import duration
from ddn_lightning.report.tuning import ArmRecord
from ddn_lightning.reproduce.executor import Event
from ddn_lightning.reproduce.progress import PlanProgress
from ddn_lightning.tune.outcome import Outcome
from ddn_lightning.tune.ranges import as_option
from ddn_lightning.tune.study import ArmStudy, Trial

SHOWN = ("failed", "stopping")  # states of runs; the others are told by their trials


class SearchProgress(PlanProgress):
    """Shows the progress of a search on standard error.

    Args:
        studies: All studies.
        jobs: Number of parallel runs.
        console: Console to write to.
    """

    def __init__(self, studies: Sequence[ArmStudy], jobs: int, console: Console | None = None) -> None:
        self.records = {study.arm.name: study.record() for study in studies}
        self.trials = studies[0].search.trials
        self.num_seeds = len(studies[0].search.seeds)
        super().__init__((), jobs, console)  # which draws the table

    def show(self, event: Event) -> None:
        """Record an event of a run; show failures and stops."""
        if event.state in SHOWN:
            super().show(event)
        else:
            self.events[event.run] = event

    def show_trial(self, study: ArmStudy, trial: Trial, outcome: Outcome) -> None:
        """Show a trial that was stored."""
        self.records[study.arm.name] = study.record()
        if not self.console.is_terminal:
            scored = "diverged" if outcome.state == "diverged" else f"{outcome.state} with {outcome.score:.2f}"
            best = best_of(self.records[study.arm.name])
            self._print(f"{self.summary()}: {study.arm.name} trial {trial.number + 1} {scored}, best {best}")

    def summary(self) -> str:
        """The state of the whole search in one line."""
        done = sum(len(record.trials) for record in self.records.values())
        parts = [f"{done} of {self.trials * len(self.records)} trials done"]
        took = [event.seconds for event in self.events.values() if event.state == "finished"]
        left = self.trials * len(self.records) - done
        if took and left > 0:
            seconds = sum(took) / len(took) * left * self.num_seeds / self.jobs
            parts.append(f"about {duration(seconds)} left")
        return ", ".join(parts)

    def _table(self) -> Group:
        """The summary, and a row for each study."""
        table = Table("study", "trials", "pruned", "diverged", "best")
        for name, record in self.records.items():
            counts = (len(record.trials), record.count("pruned"), record.count("diverged"))
            table.add_row(name, *map(str, counts), best_of(record))
        return Group(Text(self.summary(), style="bold"), table)


def best_of(record: ArmRecord) -> str:
    """The best trial of a study so far: its score, number and values."""
    if record.best is None:
        return "none yet"
    best = record.trials[record.best]
    values = ", ".join(f"{option.removeprefix('model.')} {as_option(value)}" for option, value in best.values.items())
    return f"{best.score:.2f} (trial {record.best + 1}: {values})"
