"""A study proposes the same trials whenever it is filled again, and scores them on validation images."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from tune_search import ARM, CELL, LR, SEARCH

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.tune.search import Arm, Search
from ddn_lightning.tune.study import ArmStudy, Trial, open_storage, read_score, score_of

MATRIX = [[90.0, None, None], [60.0, 80.0, None], [30.0, 60.0, 90.0]]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def written(folder: Path, matrix: Sequence[Sequence[float | None]] = MATRIX, **others: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    results = {"accuracy_matrix": matrix, "tasks_finished": 3, "measured_on": "validation", "method": "ER"}
    results |= {"dataset": "digits", "buffer_size": 100, "seed": 1000, "plugin": None, "status": "complete"}
    (folder / "results.json").write_text(json.dumps({**results, **others}))
    return folder


def run(trial: Trial) -> None:
    """What training gives: best at lr 0.03, diverged far from it."""
    distance = abs(math.log10(float(str(trial.values["model.lr"])) / 0.03))
    for number, one in enumerate(trial.runs):
        acc = 80 - 20 * distance + (trial.values.get("model.batches") == "separate") + number
        status = {"status": "diverged", "reason": "loss became nan"} if distance > 0.9 else {}
        written(one.folder, [[acc] * 3] * 3, **status)


def searched(search: Search, arm: Arm = ARM, storage: str | None = None) -> ArmStudy:
    study = ArmStudy(arm, search, storage)
    while batch := study.next_batch():
        for trial in batch:
            run(trial)
            study.store(trial)
    return study


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_study_that_is_filled_again_has_the_same_trials_and_the_same_runs(at_once: int) -> None:
    search = replace(SEARCH, at_once=at_once)
    first, again = searched(search), ArmStudy(ARM, search)
    folders = sorted(Path("runs/tune/er-hard").iterdir())
    while batch := again.next_batch():
        for trial in batch:
            again.store(trial)  # nothing is run
    assert [trial.values for trial in again.trials] == [trial.values for trial in first.trials]
    assert [trial.params for trial in again.trials] == [trial.params for trial in first.trials]
    assert len(first.trials) == 14
    assert len(folders) == 28
    assert again.best is not None
    assert first.best is not None
    assert again.best.number == first.best.number


def test_the_best_trial_has_not_diverged_and_a_diverged_one_scores_nothing() -> None:
    study = searched(SEARCH)
    scores = [score_of(trial) for trial in study.trials]
    diverged = [trial for trial in study.trials if trial.user_attrs["diverged"]]
    assert 0 < len(diverged) < 14
    assert {score_of(trial) for trial in diverged} == {0.0}
    assert study.best is not None
    assert score_of(study.best) == max(scores)
    assert ArmStudy(ARM, SEARCH).best is None


def test_other_settings_never_find_the_runs_of_a_search() -> None:
    (trial,) = ArmStudy(ARM, SEARCH).next_batch()

    def folders(search: Search, values: dict[str, Any] = trial.values) -> set[Path]:
        return {run.folder for run in search.runs(ARM, 0, values)}

    own = folders(SEARCH)
    assert own == {run.folder for run in trial.runs}
    for other in (
        replace(SEARCH, tasks=2),
        replace(SEARCH, tasks=None),
        replace(SEARCH, order_seed=7),
        replace(SEARCH, validation_share=0.2),
        replace(SEARCH, options=replace(SEARCH.options, extra=["--model.momentum", "0.9"])),
    ):
        assert not own & folders(other)
    assert not own & folders(SEARCH, {**trial.values, "model.lr": 0.1})


def test_a_longer_search_begins_with_the_trials_of_a_shorter_one() -> None:
    short, long = searched(replace(SEARCH, trials=3)), searched(replace(SEARCH, trials=5))
    assert [trial.params for trial in long.trials[:3]] == [trial.params for trial in short.trials]


def test_studies_begin_alike_as_far_as_they_share_ranges() -> None:
    (one,), (other,) = ArmStudy(ARM, SEARCH).next_batch(), ArmStudy(Arm(CELL, (LR,)), SEARCH).next_batch()
    assert other.values == {"model.lr": one.values["model.lr"]}


def test_proposals_are_within_their_ranges_and_short() -> None:
    for trial in ArmStudy(ARM, replace(SEARCH, trials=30, at_once=30)).next_batch():
        rate = trial.values["model.lr"]
        assert isinstance(rate, float)
        assert 0.003 <= rate <= 0.3
        assert float(f"{rate:.3g}") == rate
        assert isinstance(trial.values["model.replay_batch_size"], int)
        assert trial.values["model.batches"] in ("separate", "concatenated")


def test_a_trial_runs_closed_on_the_first_tasks_of_another_order() -> None:
    (trial,) = ArmStudy(ARM, SEARCH).next_batch()
    (first, second) = trial.runs
    options = dict(zip(first.arguments, first.arguments[1:], strict=False))
    assert options["--data.closed_test"] == "true"
    assert options["--data.validation_share"] == "0.1"
    assert options["--data.class_order_seed"] == "1000"
    assert options["--trainer.callbacks.tasks"] == "3"
    assert (first.seed, second.seed) == (1000, 1001)
    assert str(first.folder).startswith("runs/tune/er-hard/trial-000-seed1000-")
    assert "peeks" not in SEARCH.protocol
    whole = replace(SEARCH, tasks=None)
    assert "peeks" in whole.protocol
    (trial,) = ArmStudy(ARM, whole).next_batch()
    assert not any("class_order_seed" in word or "callbacks" in word for word in trial.runs[0].arguments)


def test_the_storage_is_begun_anew_even_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("half a database")
    (tmp_path / "study.db-journal").write_text("of a transaction")
    searched(replace(SEARCH, trials=2), storage=open_storage(tmp_path))
    stored = optuna.load_study(study_name="er-hard", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(stored.trials) == 2
    assert not (tmp_path / "study.db-journal").exists()


def test_figures_are_drawn_as_far_as_there_are_trials() -> None:
    for number, names in ((0, []), (1, ["slice"]), (8, ["importance", "slice"])):
        folder = Path(f"figures-{number}")
        folder.mkdir()
        searched(replace(SEARCH, trials=number)).draw(folder)
        assert sorted(path.name for path in folder.iterdir()) == [f"er-hard-{name}.svg" for name in names]


@pytest.mark.parametrize(("finished", "score"), [(3, 60.0), (2, 70.0)])
def test_a_score_is_acc_over_the_learned_tasks(finished: int, score: float, tmp_path: Path) -> None:
    assert read_score(written(tmp_path, tasks_finished=finished)) == score
    assert read_score(written(tmp_path, tasks_finished=finished, status="diverged", reason="nan")) is None


@pytest.mark.parametrize(
    "others", [{"measured_on": "test"}, {"test": {"accuracies": [50.0], "average_accuracy": 50.0}}]
)
def test_a_run_that_has_seen_test_images_has_no_score(others: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be measured on validation images alone, got test"):
        read_score(written(tmp_path, **others))


def test_a_run_without_accuracies_has_no_score(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must have an accuracy of each learned task"):
        read_score(written(tmp_path, [[None]], tasks_finished=1))
    with pytest.raises(ConfigurationError, match="must have an accuracy of each learned task"):
        read_score(written(tmp_path, [[90.0]], tasks_finished=0))
    with pytest.raises(ConfigurationError, match="must hold the results of a trial"):
        read_score(tmp_path / "nowhere")
