"""``ddn fit --anytime.every_n_steps`` writes the curves and the measures of a run, and changes nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddn_lightning.cli import main
from ddn_lightning.metrics.anytime import anytime_summary
from ddn_lightning.runs.recorded_run import read_run

CONFIGS = Path(__file__).parents[2] / "configs"
SHORT = ("--data.epochs_per_task=1", "--trainer.enable_progress_bar=false", "--trainer.log_every_n_steps=5")
ANYTIME = ("--anytime.every_n_steps=7", "--anytime.images=40")
PLAIN = ["fit", "-c", str(CONFIGS / "quickstart.yaml"), *SHORT, "--name"]


def results_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path("runs") / name / "results.json").read_text())
    return found


def test_a_run_has_its_evaluations_in_a_file_and_their_measures_in_its_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*PLAIN, "without"]) == 0
    without = results_of("without")
    assert not without["anytime"]
    assert not Path("runs/without/anytime.csv").exists()
    assert "over all steps" not in capsys.readouterr().out

    assert main([*PLAIN, "with", *ANYTIME]) == 0
    found = results_of("with")
    assert found["accuracy_matrix"] == without["accuracy_matrix"]
    run = read_run(Path("runs/with"))
    assert not run.problems
    assert run.anytime is not None
    steps = run.anytime.steps.tolist()
    assert {*range(7, found["steps"], 7)} | {*run.anytime.switches, found["steps"]} == set(steps)
    for name, value in anytime_summary(run.anytime.accuracies, run.anytime.tasks).items():
        expected = None if value.isnan() else pytest.approx(float(value), abs=1e-3)
        assert found["anytime"][name] == expected, name
    assert found["anytime"]["images"] == 40
    assert found["anytime"]["evaluations"] == len(steps)
    assert 0 < found["anytime"]["seconds"] < found["seconds"]
    assert f"{len(steps)} evaluations of at most 40 images" in capsys.readouterr().out
    curve = run.curve("anytime/average_accuracy").values
    assert curve == pytest.approx([one.average_accuracy for one in run.anytime.evaluations])

    assert main(["validate", "-c", "runs/with/config.yaml", "--ckpt_path", "runs/with/checkpoints/last.ckpt"]) == 0
    table, written = Path("runs/with/anytime.csv").read_text(), found["anytime"]
    assert main([*PLAIN, "with", *ANYTIME, "--ckpt_path=last"]) == 0  # nothing is left to train
    assert Path("runs/with/anytime.csv").read_text() == table
    assert results_of("with")["anytime"] == written


def test_a_run_stopped_between_two_evaluations_goes_on_with_them() -> None:
    assert main([*PLAIN, "whole", *ANYTIME]) == 0
    assert main([*PLAIN, "parts", *ANYTIME, "--trainer.max_steps=24"]) == 0
    assert main([*PLAIN, "parts", *ANYTIME, "--ckpt_path=last"]) == 0
    tables = [Path(f"runs/{name}/anytime.csv").read_text() for name in ("whole", "parts")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--anytime.images=40"], "anytime needs every_n_steps to measure within tasks, got images 40 alone"),
        (["--anytime.seed=3", "--anytime.unseen_tasks=true"], "got seed 3, unseen_tasks True alone"),
        (["--anytime.every_n_steps=0"], "every_n_steps must be positive, got 0"),
        (["--anytime.every_n_steps=5", "--anytime.images=9"], "images must be at least 10"),
        (["--anytime.every_n_steps=5", "--anytime.unseen_tasks=true"], "unseen_tasks must be false"),
    ],
)
def test_a_bad_option_is_refused_in_one_line_and_leaves_nothing(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAIN, "refused", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("runs/refused").exists()


def test_the_shipped_file_turns_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*PLAIN, "shown", "-c", str(CONFIGS / "evaluation/anytime.yaml"), "--print_config"])
    assert "every_n_steps: 50" in capsys.readouterr().out
