"""One Optuna study per method and plug-in: proposes trials, stores their scores, draws its figures."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.reproduce.plan import Run
from ddn_lightning.runs.files import read_regular
from ddn_lightning.runs.results import RESULTS_FILE, UNREADABLE, Results
from ddn_lightning.tune.ranges import Range, Value
from ddn_lightning.tune.search import Arm, Search

STORAGE_FILE = "study.db"
DIRECTION = optuna.study.StudyDirection.MAXIMIZE
SCORED_ON = "validation"
DIVERGED = "diverged"  # attribute of a trial
DIVERGED_SCORE = 0.0
SEARCH_SEED = 0
FEWEST_FOR_IMPORTANCE = 4  # trials


@dataclass(frozen=True)
class Trial:
    """A proposed trial: its number, the values to try, and its runs."""

    number: int
    values: dict[str, Value]
    runs: tuple[Run, ...]


class ArmStudy:
    """The study of one method with one plug-in.

    Trials are kept in their run folders. Each start of a search proposes all trials again and finds the finished
    runs, so a search that was killed ends as an undisturbed one. The storage is a copy for Optuna's dashboard.

    Args:
        arm: The method, the plug-in and the ranges.
        search: The settings of all studies.
        storage: Address of Optuna's storage; ``None`` for memory.
    """

    def __init__(self, arm: Arm, search: Search, storage: str | None = None) -> None:
        self.arm = arm
        self.search = search
        self._study = optuna.create_study(storage=storage, study_name=arm.name, direction=DIRECTION)
        self._distributions = {one.option: _distribution(one) for one in arm.ranges}

    @property
    def trials(self) -> list[FrozenTrial]:
        """The trials that have ended, in their order."""
        return self._study.get_trials(deepcopy=False)

    @property
    def best(self) -> FrozenTrial | None:
        """The trial with the highest score, the first of several; a diverged one is never the best."""
        converged = [trial for trial in self.trials if not trial.user_attrs[DIVERGED]]
        return max(converged, key=score_of, default=None)

    def next_batch(self) -> list[Trial]:
        """The trials to run next, by TPE (Bergstra et al. 2011); none when the study is done.

        The sampler is seeded by the number of the trial. The trials of a batch do not know each other's results.
        """
        ended = self.trials
        copy = optuna.create_study(direction=DIRECTION)
        copy.add_trials(ended)
        batch = []
        for number in range(len(ended), min(len(ended) + self.search.at_once, self.search.trials)):
            copy.sampler = optuna.samplers.TPESampler(seed=_seed_of(number))
            proposed = copy.ask(self._distributions).params
            values = {one.option: one.rounded(proposed[one.option]) for one in self.arm.ranges}
            batch.append(Trial(number, values, tuple(self.search.runs(self.arm, number, values))))
        return batch

    def store(self, trial: Trial) -> FrozenTrial:
        """Store a trial whose runs have ended, with the mean of their scores; 0 if any has diverged."""
        scores = [read_score(run.folder) for run in trial.runs]
        converged = [score for score in scores if score is not None]
        has_diverged = len(converged) < len(scores)
        self._study.add_trial(
            create_trial(
                value=DIVERGED_SCORE if has_diverged else round(fmean(converged), 4),
                params=dict(trial.values),
                distributions=self._distributions,
                user_attrs={DIVERGED: has_diverged},
            )
        )
        return self.trials[-1]

    def draw(self, folder: Path) -> None:
        """Write Optuna's figures: the score over each option and, with enough trials, the options' importance."""
        from matplotlib import pyplot
        from optuna.visualization import matplotlib as figures

        drawings: dict[str, Callable[[], object]] = {"slice": lambda: figures.plot_slice(self._study)}
        if len(self.arm.ranges) > 1 and len({trial.value for trial in self.trials}) >= FEWEST_FOR_IMPORTANCE:
            # Optuna's default, PED-ANOVA, looks at the best tenth only: two or three trials of the usual budget
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=SEARCH_SEED)
            drawings["importance"] = lambda: figures.plot_param_importances(self._study, evaluator=evaluator)
        for name, draw in drawings.items() if self.trials else ():
            with pyplot.rc_context(), warnings.catch_warnings(action="ignore"):  # Optuna changes the global style
                draw()
                pyplot.savefig(folder / f"{self.arm.name}-{name}.svg", bbox_inches="tight")
            pyplot.close()


def open_storage(folder: Path) -> str:
    """The address of an empty storage: every start of a search fills it again."""
    for path in folder.glob(f"{STORAGE_FILE}*"):  # a killed search may leave a journal
        path.unlink()
    return f"sqlite:///{(folder / STORAGE_FILE).absolute()}"


def score_of(trial: FrozenTrial) -> float:
    """The score of a trial that has ended."""
    return float(trial.values[0])


def read_score(folder: Path) -> float | None:
    """ACC over the learned tasks in percent, on validation images; ``None`` if the run has diverged.

    Raises:
        ConfigurationError: If the run was not measured on validation images alone, or not after its last task.
    """
    path = folder / RESULTS_FILE
    try:
        results = Results.from_json(read_regular(path))
    except UNREADABLE as error:
        raise ConfigurationError(f"{path} must hold the results of a trial: {error}") from error
    if results.acc_measured_on != SCORED_ON:
        raise ConfigurationError(
            f"{path} must be measured on {SCORED_ON} images alone, got {results.acc_measured_on}: others would choose"
        )
    if results.divergence is not None:
        return None
    row = results.matrix[results.tasks_finished - 1, : results.tasks_finished]
    if not len(row) or not row.isfinite().all():
        raise ConfigurationError(f"{path} must have an accuracy of each learned task, got {row.tolist()}")
    return round(fmean(row.tolist()), 4)


def values_of(trial: FrozenTrial, ranges: Sequence[Range]) -> dict[str, Value]:
    """The values of a trial, in the order of the ranges."""
    return {one.option: trial.params[one.option] for one in ranges}


def _distribution(one: Range) -> BaseDistribution:
    if one.choices:
        return CategoricalDistribution(one.choices)
    if one.is_integer:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)


def _seed_of(number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{SEARCH_SEED} {number}".encode()).digest()[:4], "big")
