from dataclasses import replace
from pathlib import Path
from typing import Any

from ddn_lightning.report.figures.comparison_figures import ALPHA, BETA, alpha_beta_points
from ddn_lightning.report.page_tables import seeds_table
from ddn_lightning.report.seed_group import by_seed, one_per_seed, varied_settings
from ddn_lightning.runs.recorded_run import RecordedRun
from ddn_lightning.runs.results import Results

BASE = {"method": "ER", "plugin": None, "dataset": "cifar10", "buffer_size": 200, "status": "complete"}
REST = {"tasks_finished": 5, "seconds": 9.0, "accuracy_matrix": [[1.0] * 5] * 5}


def a_run(acc: float = 40.0, seed: int = 0, config: dict[str, Any] | None = None, **results: Any) -> RecordedRun:
    whole = {**BASE, **REST, "average_accuracy": acc, "forgetting": 100 - acc, "seed": seed, **results}
    online = {"data.init_args.epochs_per_task": 1, "seed_everything": seed, "name": f"run{acc}-{seed}"}
    return RecordedRun(f"run{acc}-{seed}", Path("run"), Results(**whole), {**online, **(config or {})})


def test_runs_that_differ_only_in_seed_or_folder_are_one_group() -> None:
    first, second = a_run(seed=0, config={"runs": "a"}), a_run(seed=1, config={"runs": "b"})
    other = a_run(seed=2, config={"model.init_args.lr": 0.1})
    assert by_seed([first, other, second]) == [[first, second], [other]]
    chosen = a_run(seed=3, config={"chosen_on_seeds": [0]})  # says where the settings come from, and changes none
    assert by_seed([first, chosen]) == [[first, chosen]]
    same_settings = a_run(seed=0, plugin="DataDistillNet")
    assert by_seed([first, same_settings]) == [[first], [same_settings]]
    unknown = [replace(first, config={}, folder=Path(name)) for name in ("a", "b")]  # whose settings nobody knows
    assert by_seed(unknown) == [[one] for one in unknown]


def test_a_repeated_seed_counts_once() -> None:
    first, again, other = a_run(40.0, seed=0), a_run(40.5, seed=0, config={"name": "again"}), a_run(44.0, seed=1)
    assert one_per_seed([first, again, other]) == [first, other]
    table = seeds_table([first, again, other])
    (row,) = table.rows
    assert any(cell.text == "42.00 ± 2.83 (2)" for cell in row)
    weighted = [replace(run, config={**run.config, ALPHA: 1.0, BETA: b}) for run in (first, again) for b in (0.5, 0.9)]
    _, betas = alpha_beta_points(weighted)
    assert {value: acc.n for value, (acc, _) in betas.items()} == {0.5: 1, 0.9: 1}


def test_a_setting_varies_if_two_runs_give_it_different_values() -> None:
    runs = [
        a_run(config={"model.init_args.lr": 0.1, "model.init_args.buffer_size": 1, "trainer.devices": 1}),
        a_run(config={"model.init_args.lr": 0.2, "model.init_args.buffer_size": 2, "trainer.devices": 2}),
        a_run(config={"model.init_args.lr": 0.2, "model.init_args.distiller.init_args.alpha": 1.0}),
    ]
    (varied,) = varied_settings(runs)
    assert [varied.describe(run) for run in range(3)] == ["lr 0.1", "lr 0.2", "lr 0.2"]


def test_alpha_and_beta_are_averaged_over_seeds_with_the_other_fixed() -> None:
    def distilled(alpha: float, beta: float, acc: float, seed: int) -> RecordedRun:
        return a_run(acc, seed, {ALPHA: alpha, BETA: beta}, plugin="DataDistillNet")

    runs = [
        distilled(1.0, 0.9, 40, 0),
        distilled(1, 0.9, 44, 1),
        distilled(0.5, 0.9, 30, 0),
        distilled(1.0, 0.5, 20, 0),
    ]
    found = alpha_beta_points([*runs, a_run(99)])
    assert found is not None
    alphas, betas = found
    assert {value: (acc.mean, acc.n, fm.mean) for value, (acc, fm) in alphas.items()} == {
        0.5: (30, 1, 70),
        1.0: (42, 2, 58),
    }
    assert {value: acc.mean for value, (acc, _) in betas.items()} == {0.5: 20, 0.9: 42}
    assert alpha_beta_points(runs[:2]) is None
    only_alpha = alpha_beta_points(runs[:3])
    assert only_alpha is not None
    assert only_alpha[1] == {}
