"""One study: its trials in Optuna's storage, and the batch of trials to run next."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.tuning import ArmRecord, TrialRecord
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.tune.outcome import Outcome, mean_outcome, thresholds
from ddn_lightning.tune.proposal import DIRECTION, distributions_of, propose
from ddn_lightning.tune.ranges import Value
from ddn_lightning.tune.search import SEARCH_SEED, Arm, Search

STORAGE_FILE = "study.db"
DESCRIPTION = "search"  # key of a study's attribute
STATE, CURVES = "state", "curves"  # keys of a trial's attributes
FEWEST_FOR_IMPORTANCE = 4  # complete trials


@dataclass(frozen=True)
class Trial:
    """A trial that has not ended: its number, the values to try, and its runs."""

    number: int
    values: dict[str, Value]
    runs: tuple[Run, ...]


class ArmStudy:
    """The study of one method with one plug-in.

    A trial is stored when it has ended, whole, in one transaction of an SQLite file. A killed search leaves no half
    trials: what was running is proposed again with the same values, and its runs resume from their checkpoints. SQLite
    rather than Optuna's journal file, in which a kill may leave a lock or half a line; there is only one writer.

    Args:
        arm: What is tuned.
        search: The settings of all studies.
        storage: Optuna's storage.

    Raises:
        ConfigurationError: If the study was begun with other settings, or a new one finds runs of another's trials.
    """

    def __init__(self, arm: Arm, search: Search, storage: optuna.storages.BaseStorage | None = None) -> None:
        self.arm = arm
        self.search = search
        self._study = optuna.create_study(
            storage=storage, study_name=arm.name, direction=DIRECTION, load_if_exists=True
        )
        described, begun = search.described(arm), self._study.user_attrs.get(DESCRIPTION)
        if begun is None:
            if storage is not None and (runs := sorted((search.folder / arm.name).glob("trial-*/"))):
                raise ConfigurationError(
                    f"{runs[0]} must be a trial of {search.folder / STORAGE_FILE}, which knows of none: delete it, or "
                    "choose another --name"
                )
            self._study.set_user_attr(DESCRIPTION, described)
        elif different := [name for name, value in described.items() if begun.get(name) != value]:
            raise ConfigurationError(
                f"the study {arm.name} in {search.folder} must go on as it was begun, but differs in "
                f"{', '.join(different)}: choose another --name"
            )

    @property
    def ended(self) -> list[FrozenTrial]:
        """The trials that have ended, in their order."""
        return self._study.get_trials(deepcopy=False)

    def next_batch(self) -> list[Trial]:
        """The trials to run next; none when the study is done.

        A batch is proposed from the trials before it alone, so that a search that was killed within it goes on as an
        undisturbed one.
        """
        ended, at_once = self.ended, self.search.at_once
        before = ended[: len(ended) // at_once * at_once]
        count = min(at_once, self.search.trials - len(before))
        proposals = propose(self.arm.ranges, before, max(0, count), SEARCH_SEED)
        least = self._least(before)
        trials = []
        for number, values in enumerate(proposals, start=len(before)):
            if number >= len(ended):
                trials.append(Trial(number, values, tuple(self.search.runs(self.arm, number, values, least))))
        return trials

    def store(self, trial: Trial, outcomes: Sequence[Outcome]) -> Outcome:
        """Store a trial with the outcomes of its runs; returns the trial's own."""
        assert trial.number == len(self.ended)
        outcome = mean_outcome(outcomes)
        self._study.add_trial(
            create_trial(
                state=TrialState.PRUNED if outcome.state == "pruned" else TrialState.COMPLETE,
                value=outcome.score,
                params=dict(trial.values),
                distributions=distributions_of(self.arm.ranges),
                intermediate_values=dict(enumerate(outcome.curve)),
                user_attrs={STATE: outcome.state, CURVES: [list(one.curve) for one in outcomes]},
            )
        )
        return outcome

    def record(self, with_importance: bool = False) -> ArmRecord:
        """The study so far; importance takes seconds."""
        trials = [
            TrialRecord(trial.user_attrs[STATE], float(trial.values[0]), dict(trial.params), _curve(trial))
            for trial in self.ended
        ]
        ranges = {one.option: one.as_plain() for one in self.arm.ranges}
        importance = self._importance() if with_importance else {}
        return ArmRecord(self.arm.cell, ranges, tuple(trials), importance)

    def _least(self, ended: Sequence[FrozenTrial]) -> list[list[float | None]]:
        """For each seed, ACC after each task below which a run is pruned."""
        if not self.search.prunes:
            return [[] for _ in self.search.seeds]
        complete = [trial.user_attrs[CURVES] for trial in ended if trial.user_attrs[STATE] == "complete"]
        return [thresholds([curves[place] for curves in complete]) for place in range(len(self.search.seeds))]

    def _importance(self) -> dict[str, float]:
        """The share of each option by fANOVA (Hutter et al. 2014); empty where it cannot be told.

        Optuna's default, PED-ANOVA, looks at the best tenth only: two or three trials of the usual budget.
        """
        complete = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        if len(complete) < FEWEST_FOR_IMPORTANCE or len({trial.value for trial in complete}) == 1:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=SEARCH_SEED)
        found = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {option: round(float(share), 4) for option, share in found.items()}


def open_storage(folder: Path) -> optuna.storages.BaseStorage:
    """The storage of all studies of a search, which Optuna's dashboard can show too."""
    path = folder / STORAGE_FILE
    try:
        return optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")
    except (SQLAlchemyError, RuntimeError) as error:  # damaged, or of another version of Optuna
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"{path} must be the storage of a search by this Optuna: {reason}") from error


def _curve(trial: FrozenTrial) -> tuple[float, ...]:
    return tuple(value for _, value in sorted(trial.intermediate_values.items()))
