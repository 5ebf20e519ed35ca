"""A search that is killed anywhere goes on with the trials of an undisturbed one."""

import math
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from tune_search import ARM, CELL, LR, RANGES, SEARCH

from ddn_lightning.errors import ConfigurationError
from ddn_lightning.report.tuning import ArmRecord
from ddn_lightning.tune.outcome import Outcome
from ddn_lightning.tune.proposal import propose
from ddn_lightning.tune.search import Arm, Protocol, Search
from ddn_lightning.tune.study import ArmStudy, Trial, open_storage


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def outcome(trial: Trial) -> list[Outcome]:
    """What training gives: best at lr 0.03, pruned or diverged far from it."""
    distance = abs(math.log10(float(str(trial.values["model.lr"])) / 0.03))
    acc = 90 - 20 * distance + (trial.values["model.batches"] == "separate")
    state = "diverged" if distance > 0.9 else "pruned" if trial.number > 4 and distance > 0.7 else "complete"
    curve = (99.0, acc, acc - 10)[: 2 if state == "pruned" else 3]
    return [Outcome(state, curve), Outcome(state, tuple(value + 1 for value in curve))]  # type: ignore[arg-type]


def searched(search: Search, stops: frozenset[int] = frozenset(), folder: Path | None = None) -> ArmRecord:
    """The record of a search that is begun anew, from its file, before the storing of each trial in ``stops``."""
    folder = folder or Path("undisturbed")
    folder.mkdir(exist_ok=True)
    stopped: set[int] = set()
    study = ArmStudy(ARM, search, open_storage(folder))
    while batch := study.next_batch():
        for trial in batch:
            if trial.number in stops - stopped:
                stopped.add(trial.number)
                study = ArmStudy(ARM, search, open_storage(folder))
                break
            study.store(trial, outcome(trial))
    return study.record()


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_search_begun_anew_in_any_place_has_the_same_trials(at_once: int) -> None:
    search = replace(SEARCH, at_once=at_once)
    undisturbed = searched(search)
    assert len(undisturbed.trials) == 14
    assert {trial.state for trial in undisturbed.trials} == {"complete", "pruned", "diverged"}
    disturbed = searched(search, frozenset({1, 6, 12, 13}), Path("disturbed"))
    assert disturbed == undisturbed
    assert disturbed.best == undisturbed.best is not None


def test_proposals_depend_on_the_trials_before_them_only() -> None:
    first, second = propose(RANGES, [], 2, seed=0)
    assert propose(RANGES, [], 1, seed=0) == [first]
    assert first != second
    assert propose(RANGES, [], 1, seed=1) != [first]
    assert propose(RANGES[:1], [], 1, seed=0) == [{"model.lr": first["model.lr"]}]  # studies begin alike


def test_proposals_are_within_their_ranges_and_short() -> None:
    for values in propose(RANGES, [], 30, seed=0):
        rate = values["model.lr"]
        assert isinstance(rate, float)
        assert 0.003 <= rate <= 0.3
        assert float(f"{rate:.3g}") == rate
        assert isinstance(values["model.replay_batch_size"], int)
        assert values["model.batches"] in ("separate", "concatenated")


def test_a_trial_is_told_where_it_would_be_pruned() -> None:
    study = ArmStudy(ARM, SEARCH)
    for number in range(5):
        (trial,) = study.next_batch()
        assert not any("callbacks.least" in word for run in trial.runs for word in run.arguments)
        study.store(trial, [Outcome("complete", (99.0, 60.0 + number, 50.0)), Outcome("complete", (99.0, 70.0, 50.0))])
    (trial,) = study.next_batch()
    told = [dict(zip(run.arguments, run.arguments[1:], strict=False)) for run in trial.runs]
    assert [options["--trainer.callbacks.least"] for options in told] == ["[null, 62.0]", "[null, 70.0]"]
    assert [options["--trainer.callbacks.tasks"] for options in told] == ["3", "3"]
    study = ArmStudy(ARM, replace(SEARCH, prunes=False, protocol=Protocol(None)))
    (trial,) = study.next_batch()
    assert not any("callbacks" in word for word in trial.runs[0].arguments)


def test_a_trial_runs_closed_on_the_first_tasks_of_another_order() -> None:
    (trial,) = ArmStudy(ARM, SEARCH).next_batch()
    (first, second) = trial.runs
    options = dict(zip(first.arguments, first.arguments[1:], strict=False))
    assert options["--data.closed_test"] == "true"
    assert options["--data.validation_share"] == "0.1"
    assert options["--data.class_order_seed"] == "1000"
    assert (first.seed, second.seed) == (1000, 1001)
    assert first.folder == Path("runs/tune/er-hard/trial-000-seed1000")
    assert "peeks" not in SEARCH.protocol.sentence
    assert "peeks" in Protocol(None).sentence
    assert Protocol(None).options == []


def test_a_study_goes_on_with_the_settings_it_was_begun_with() -> None:
    Path("here").mkdir()
    study = ArmStudy(ARM, replace(SEARCH, trials=2), open_storage(Path("here")))
    (trial,) = study.next_batch()
    study.store(trial, outcome(trial))
    longer = ArmStudy(ARM, SEARCH, open_storage(Path("here")))  # more trials are welcome
    assert [trial.number for trial in longer.next_batch()] == [1]
    for other, difference in (
        (replace(SEARCH, seeds=(1000,)), "seeds, settings"),
        (replace(SEARCH, protocol=Protocol(2)), "tasks"),
        (replace(SEARCH, protocol=Protocol(3, order_seed=7)), "settings"),
        (replace(SEARCH, validation_share=0.2), "settings"),
        (replace(SEARCH, options=replace(SEARCH.options, extra=["--model.momentum", "0.9"])), "settings"),
        (replace(SEARCH, at_once=2), "at_once"),
    ):
        with pytest.raises(ConfigurationError, match=f"must go on as it was begun, but differs in {difference}: "):
            ArmStudy(ARM, other, open_storage(Path("here")))
    with pytest.raises(ConfigurationError, match="differs in ranges"):
        ArmStudy(Arm(CELL, (LR,)), SEARCH, open_storage(Path("here")))


def test_importance_finds_the_option_that_matters() -> None:
    study = ArmStudy(ARM, replace(SEARCH, trials=12))
    assert study.record(with_importance=True).importance == {}
    while batch := study.next_batch():
        for trial in batch:
            study.store(trial, outcome(trial))
    importance = study.record(with_importance=True).importance
    assert max(importance, key=lambda option: importance[option]) == "model.lr"
    assert sum(importance.values()) == pytest.approx(1, abs=0.001)


def test_a_damaged_storage_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("not a database, and long enough to be taken for one " * 40)
    with pytest.raises(ConfigurationError, match=r"study.db must be the storage of a search by this Optuna: "):
        open_storage(tmp_path)


def test_a_study_that_begins_takes_no_runs_of_another(tmp_path: Path) -> None:
    search = replace(SEARCH, folder=tmp_path)
    (tmp_path / ARM.name / "trial-000-seed1000").mkdir(parents=True)
    with pytest.raises(
        ConfigurationError, match=r"trial-000-seed1000 must be a trial of .*study.db, which knows of none"
    ):
        ArmStudy(ARM, search, open_storage(tmp_path))
    ArmStudy(ARM, search)  # a dry run
