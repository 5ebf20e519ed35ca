"""Runs the trials of all studies with one executor, until each study is done."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ddn_lightning.reproduce.executor import Event, Executor
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.reproduce.progress import ENDED
from ddn_lightning.tune.outcome import Outcome, read_outcome
from ddn_lightning.tune.study import ArmStudy, Trial


class Observer(Protocol):
    """Is told of what happens."""

    def show(self, event: Event) -> None:
        """A run has changed its state."""

    def show_trial(self, study: ArmStudy, trial: Trial, outcome: Outcome) -> None:
        """A trial has been stored."""


def run_trials(
    studies: Sequence[ArmStudy], executor: Executor, is_stopped: Callable[[], bool], observer: Observer
) -> bool:
    """Run all trials that have not ended; returns whether no run failed.

    Studies do not wait for each other. Within a study, the trials of a batch are stored together, in their order, when
    all of them have ended: the order in which parallel runs end does not change what is proposed next. A study with a
    run that failed does not go on; the others do.

    Args:
        studies: The studies.
        executor: Executes the runs.
        is_stopped: Polled several times a second; once true, running trials are asked to save and exit.
        observer: Told of runs and trials.
    """
    waiting: deque[Run] = deque()
    batches: dict[Path, _Batch] = {}  # by run folder

    def start(study: ArmStudy) -> None:
        batch = _Batch(study, study.next_batch())
        batches.update(dict.fromkeys(batch.left, batch))
        waiting.extend(run for trial in batch.trials for run in trial.runs)

    for study in studies:
        start(study)
    has_failed = False
    for event in executor.execute(waiting, is_stopped):
        observer.show(event)
        has_failed |= event.state == "failed"
        if event.state in ENDED and event.state != "failed":
            batch = batches[event.run.folder]
            batch.left.discard(event.run.folder)
            if not batch.left:
                for trial, outcome in batch.store():
                    observer.show_trial(batch.study, trial, outcome)
                start(batch.study)
    return not has_failed


class _Batch:
    """The trials of one study that run at the same time."""

    def __init__(self, study: ArmStudy, trials: Sequence[Trial]) -> None:
        self.study = study
        self.trials = trials
        self.left = {run.folder for trial in trials for run in trial.runs}

    def store(self) -> list[tuple[Trial, Outcome]]:
        tasks = self.study.search.protocol.tasks
        return [
            (trial, self.study.store(trial, [read_outcome(run.folder, tasks) for run in trial.runs]))
            for trial in self.trials
        ]
