"""``study.json``: the record of a search for hyper-parameters, which ``ddn tune`` writes and the report page shows."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.names import title_of
from ddn_lightning.report.paper import Cell
from ddn_lightning.runs.files import read_regular, write_text
from ddn_lightning.runs.results import UNREADABLE

STUDY_FILE = "study.json"


@dataclass(frozen=True)
class TrialRecord:
    """One trial: its state, its score, the values tried, and ACC over the tasks so far after each task."""

    state: str
    score: float
    values: Mapping[str, Any]
    curve: tuple[float, ...]


@dataclass(frozen=True)
class ArmRecord:
    """The study of one method with one plug-in.

    Args:
        cell: What was tuned.
        ranges: Range of each option, as in its YAML file.
        trials: All trials that have ended, in their order.
        importance: Share of the variance of the scores that each option explains; empty with too few trials.
    """

    cell: Cell
    ranges: Mapping[str, Mapping[str, Any]]
    trials: tuple[TrialRecord, ...]
    importance: Mapping[str, float]

    @property
    def name(self) -> str:
        """Method and plug-in."""
        return arm_name(self.cell)

    @property
    def title(self) -> str:
        """Method and plug-in, for readers."""
        return title_of(self.cell.method, self.cell.plugin)

    @property
    def best(self) -> int | None:
        """Number of the complete trial with the highest score, the first of several."""
        complete = [number for number, trial in enumerate(self.trials) if trial.state == "complete"]
        return max(complete, key=lambda number: self.trials[number].score, default=None)

    def count(self, state: str) -> int:
        """Number of trials in a state."""
        return sum(trial.state == state for trial in self.trials)


@dataclass(frozen=True)
class SearchRecord:
    """All studies of one ``ddn tune``.

    Args:
        name: Name of the search.
        command: The command.
        protocol: Which tasks the trials learned, and whether the search has peeked, in a sentence.
        trials: Trials of each study when it is done.
        seeds: Seeds of each trial's runs.
        versions: Versions of the packages.
        arms: The studies.
    """

    name: str
    command: str
    protocol: str
    trials: int
    seeds: tuple[int, ...]
    versions: Mapping[str, str]
    arms: tuple[ArmRecord, ...]


def arm_name(cell: Cell) -> str:
    """The name of a study: method and plug-in.

    >>> arm_name(Cell("online", "cifar10", 200, "er", "ddn")), arm_name(Cell("online", "cifar10", 200, "er"))
    ('er-ddn', 'er')
    """
    return cell.method if cell.plugin == "none" else f"{cell.method}-{cell.plugin}"


def write_search(folder: Path, search: SearchRecord) -> None:
    """Write the record of a search to its folder."""
    write_text(folder / STUDY_FILE, json.dumps(asdict(search), indent=1) + "\n")


def read_search(folder: Path) -> SearchRecord | None:
    """The record of the search in a folder, or ``None`` if there is none.

    Raises:
        ConfigurationError: If it is damaged.
    """
    path = folder / STUDY_FILE
    if not path.is_file():
        return None
    try:
        plain = json.loads(read_regular(path))
        arms = tuple(_arm(arm) for arm in plain.pop("arms"))
        return SearchRecord(**{**plain, "seeds": tuple(plain["seeds"])}, arms=arms)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"{path} must be the record of a search by ddn tune: {reason}") from error


def _arm(plain: dict[str, Any]) -> ArmRecord:
    trials = tuple(
        TrialRecord(
            str(trial["state"]), float(trial["score"]), dict(trial["values"]), tuple(map(float, trial["curve"]))
        )
        for trial in plain["trials"]
    )
    return ArmRecord(Cell(**plain["cell"]), dict(plain["ranges"]), trials, dict(plain["importance"]))
