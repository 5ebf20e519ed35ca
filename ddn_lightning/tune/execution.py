"""Runs the trials of all studies with one executor, until each study is done."""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ddn_lightning.report.tables import markdown_table
from ddn_lightning.reproduce.executor import Executor, log_of
from ddn_lightning.reproduce.grid import as_option
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.reproduce.progress import ENDED
from ddn_lightning.tune.study import DIVERGED, ArmStudy, Trial, score_of, values_of


def run_trials(studies: Sequence[ArmStudy], executor: Executor, is_stopped: Callable[[], bool]) -> bool:
    """Run all trials; returns whether no run failed.

    The trials of a batch are stored in their order when all have ended, so the order in which parallel runs end does
    not change the next proposals. A study ends at a failed run; the others continue.

    Args:
        studies: The studies.
        executor: Executes the runs.
        is_stopped: Polled several times a second; once true, running trials are asked to save and exit.
    """
    waiting: deque[Run] = deque()
    batches: dict[Path, tuple[ArmStudy, list[Trial], set[Path]]] = {}  # by run folder; with unfinished runs

    def start(study: ArmStudy) -> None:
        trials = study.next_batch()
        runs = [run for trial in trials for run in trial.runs]
        batch = (study, trials, {run.folder for run in runs})
        batches.update((run.folder, batch) for run in runs)
        waiting.extend(runs)

    for study in studies:
        start(study)
    is_good = True
    for event in executor.execute(waiting, is_stopped):
        if event.state == "failed":
            is_good = False
            _print(f"failed: {event.run.folder}: {event.message}; {log_of(event.run)}")
        elif event.state in ENDED:
            study, trials, left = batches[event.run.folder]
            left.discard(event.run.folder)
            if not left:
                for trial in trials:
                    _show(study, trial)
                start(study)
        elif event.state == "stopping":
            _print(f"stopping {event.run.folder}, which saves a checkpoint; Ctrl-C again kills it")
    return is_good


def summary(studies: Sequence[ArmStudy]) -> str:
    """A table of all studies with their best trials."""
    rows = [[study.arm.title, f"{len(study.trials)}", described(study)] for study in studies]
    return markdown_table(["study", "trials", "best ACC on validation images"], rows)


def described(study: ArmStudy) -> str:
    """The best trial of a study so far: its score, number and values."""
    best = study.best
    if best is None:
        return "none yet"
    values = values_of(best, study.arm.ranges)
    options = ", ".join(f"{option.removeprefix('model.')} {as_option(value)}" for option, value in values.items())
    return f"{score_of(best):.2f} (trial {best.number + 1}: {options})"


def _show(study: ArmStudy, trial: Trial) -> None:
    """Store a trial and print a line about it."""
    stored = study.store(trial)
    result = "diverged" if stored.user_attrs[DIVERGED] else f"{score_of(stored):.2f}"
    number = f"trial {trial.number + 1} of {study.search.trials}"
    _print(f"{study.arm.name} {number}: {result}, best {described(study)}")


def _print(text: str) -> None:
    print(text, file=sys.stderr)
